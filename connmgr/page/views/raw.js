// Requests and answers that are bytes, not JSON.

import { ApiError, answerOf, authorization } from "../core/api.js";

/**
 * The response of an endpoint that answers with bytes; a Blob is sent as it is, and anything else as JSON.
 * @param {string} path @param {object} data
 * @throws {ApiError}
 */
export async function fetched(path, data) {
  const isBlob = data instanceof Blob;
  const headers = { ...authorization(), "Content-Type": isBlob ? "application/octet-stream" : "application/json" };
  let response;
  try {
    response = await fetch(path, { method: "POST", headers, body: isBlob ? data : JSON.stringify(data) });
  } catch {
    throw new ApiError({ code: "unreachable", message: "The daemon does not answer." }, 0);
  }
  if (!response.ok) answerOf(response.status, await response.text());
  return response;
}
