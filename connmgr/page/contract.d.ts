// Written by scripts/page_types.py from the contract: what the API takes and answers, by path.

export interface Activity {
  since: string;
  commands: number[];
  linksUp: number[];
  linksLost: number[];
}

export interface AddOutcome {
  connection: string;
  added: boolean;
}

export interface AddRequest {
  user: string;
  passphrase: string;
}

export interface Address {
  host: string;
  port: number;
}

export interface ApplyRequest {
  categories?: string[][];
  add?: EntryToAdd[];
  change?: EntryToChange[];
  remove?: string[];
}

export interface ApplyResponse {
  added: AddOutcome[];
  removed: string[];
}

export interface ApprovalDecideRequest {
  approval: string;
  decision: "once" | "grant" | "pattern" | "deny";
  seconds?: number;
}

export interface ApprovalInfo {
  approval: string;
  state: "pending" | "once" | "granted" | "denied" | "used";
  token: string;
  tokenName: string;
  asked: Record<string, any>;
  locked?: boolean;
  created: string;
  expires: string;
  decidedBy: string | null;
  pattern?: ProposedPattern;
}

export interface ApprovalQueryRequest {
  states?: ("pending" | "once" | "granted" | "denied" | "used")[];
}

export interface ApprovalQueryResponse {
  approvals: ApprovalInfo[];
}

export interface AttributesRequest {
  wait?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  mode?: string;
  owner?: string;
  group?: string;
}

export interface AuditFault {
  kind: "changed" | "missing" | "put_in" | "reordered" | "cut_off" | "lost" | "no_entry" | "unanchored" | "gone" | "forked";
  message: string;
  file?: string | null;
  seq?: number | null;
  last?: number | null;
  line?: number | null;
}

export interface AuditForgetRequest {
  trail: string;
}

export interface AuditQueryRequest {
  since?: string;
  until?: string;
  token?: string;
  connection?: string;
  caller?: string;
  action?: string;
  code?: string;
  limit?: number;
  before?: number;
}

export interface AuditQueryResponse {
  entries: (Record<string, any>)[];
  next: number | null;
}

export interface AuditRecordRequest {
  token: string;
  since?: string;
  until?: string;
  outputs?: boolean;
}

export interface AuditRecordResponse {
  steps: AuditStep[];
  complete: boolean;
}

export interface AuditStep {
  seq: number;
  at: string;
  action: string;
  where: string[];
  connection: string | null;
  what: string | null;
  code: string | null;
  exitCode: number | null;
  rule: number | string | null;
  approval: string | null;
  decidedBy: string | null;
  job: string | null;
  terminal: string | null;
  stdout: string | null;
  stderr: string | null;
  notShown: string | null;
  changes: string[];
}

export interface AuditVerifyResponse {
  sound: boolean;
  trail: string | null;
  entries: number;
  first: number | null;
  last: number | null;
  anchored: number | null;
  faults: AuditFault[];
  number: number;
  remarks: string[];
  logs: KnownAuditLog[];
}

export interface BlobResponse {
  blob: string;
}

export interface BlobUse {
  count: number;
  bytes: number;
}

export interface BroadcastLine {
  connection?: string;
  name?: string[] | null;
  exitCode?: number;
  stdout?: string;
  stderr?: string;
  truncated?: boolean;
  restarted?: boolean;
  error?: Record<string, any>;
  ms?: number;
  connections?: number;
  succeeded?: number;
  failed?: number;
  errors?: number;
}

export interface BroadcastRequest {
  connections?: string[];
  connectionFilter?: string;
  categoryFilter?: string;
  typeFilter?: string;
  where?: string;
  wait?: number;
  fresh?: boolean;
  sendEnv?: Record<string, string>;
  command?: string;
  argv?: string[];
  saved?: Saved;
  timeout?: number;
  stdin?: string;
  cwd?: string;
  env?: Record<string, string>;
  encoding?: "utf-8" | "base64";
  session?: string;
  elevate?: { user?: string; password?: string; };
  parallel?: number;
  start?: boolean;
}

export interface CaHostRequest {
  name: string;
  key: string;
  names: string[];
  seconds?: number;
}

export interface CaHostResponse {
  certificate: string;
  serial: string;
  expires: string;
}

export interface CaInfo {
  name: string;
  type: string;
  authorities: string[];
  rotating: boolean;
  limits: CaLimit[];
  revoked: number;
}

export interface CaInitRequest {
  name: string;
  data?: Record<string, any>;
  authority?: string;
  principals?: string[];
  seconds?: number;
  renew?: boolean;
}

export interface CaInitResponse {
  name: string;
  authorities: string[];
}

export interface CaLimit {
  category: string | null;
  principals: string[] | null;
  seconds: number | null;
  renew: boolean | null;
}

export interface CaLimitRequest {
  name: string;
  category?: string;
  principals?: string[];
  seconds?: number;
  renew?: boolean;
  remove?: boolean;
}

export interface CaNameRequest {
  name: string;
}

export interface CaQueryRequest {
  name?: string;
}

export interface CaQueryResponse {
  signers: CaInfo[];
}

export interface CaRevokeRequest {
  name: string;
  certificates: string[];
}

export interface CaRevokeResponse {
  revoked: string;
}

export interface CaRotateRequest {
  name: string;
  finish?: boolean;
}

export interface CaTrustResponse {
  lines: string[];
  revoked: string;
}

export interface Capacity {
  inUse: number;
  count: number;
}

export interface CategoryAddRequest {
  name: string;
  parent: string;
}

export interface CategoryAddResponse {
  category: string;
}

export interface CategoryInfo {
  category: string;
  parentCategory: string | null;
  name: string[];
  lastUsed: string;
  lastModified: string;
  config: Record<string, any>;
}

export interface CategoryInfoRequest {
  categories: string[];
}

export interface CategoryInfoResponse {
  infos: CategoryInfo[];
}

export interface CategoryQueryRequest {
  filter: string;
}

export interface CategoryQueryResponse {
  found: string[];
}

export interface CategoryRemoveRequest {
  categories: string[];
  removeChildrenCategories: boolean;
  removeContents: boolean;
}

export interface ChangeInfo {
  change: string;
  at: string;
  action: string;
  connection: string;
  path: string | { base64: string; };
  token: string | null;
  by: string;
  before: FileStateInfo;
  after: FileStateInfo | null;
  notKept: string | null;
  undoes: string | null;
  undoneBy: string | null;
}

export interface ChangeResponse {
  changes?: string[];
  notKept?: string;
}

export interface ChecksumResponse {
  name: string | { base64: string; };
  sha256: string;
}

export interface ChecksumsResponse {
  entries: ChecksumResponse[];
}

export interface CommandNameRequest {
  name: string;
}

export interface CommandQueryResponse {
  commands: SavedCommandFields[];
}

export interface CommandSaveRequest {
  name: string;
  argv: any[];
  parameters?: Record<string, any>;
  description?: string;
  mayRunOthers?: boolean;
  replace?: boolean;
}

export interface CommandSaveResponse {
  warning: string | null;
}

export interface ConnectionAddRequest {
  name: string;
  data: Record<string, any>;
  validate?: boolean;
  category?: string;
  temporary?: boolean;
  labels?: Record<string, string>;
}

export interface ConnectionAddResponse {
  connection: string;
  added: boolean;
}

export interface ConnectionBrowseRequest {
  connection: string;
  directory?: string | null;
}

export interface ConnectionElevateRequest {
  connection: string;
  user?: string;
  password?: string;
}

export interface ConnectionElevateResponse {
  connection: string;
}

export interface ConnectionEnvironmentRequest {
  connection?: string;
  connections?: string[];
}

export interface ConnectionEnvironmentResponse {
  send: string[];
  set: Record<string, any>;
}

export interface ConnectionInfo {
  connection: string;
  category: string[];
  name: string[];
  type: string;
  rawData: Record<string, any>;
  usageCategory: string | null;
  lastUsed: string;
  lastModified: string;
  state: Record<string, any>;
  cache: Record<string, any>;
  dialled?: DialledHosts;
  log?: LogCommand | null;
  created?: string;
  labels?: Record<string, string>;
}

export interface ConnectionInfoRequest {
  connections: string[];
  created?: boolean;
  dialled?: boolean;
  log?: LogRequest;
}

export interface ConnectionInfoResponse {
  infos: ConnectionInfo[];
}

export interface ConnectionLabelRequest {
  connections: string[];
  labels?: Record<string, string>;
  remove?: string[];
}

export interface ConnectionLabelResponse {
  changed: string[];
}

export interface ConnectionLoginRequest {
  connection: string;
  agent?: string;
  passphrases?: LentPassphrase[];
}

export interface ConnectionLoginResponse {
  opened: boolean;
}

export interface ConnectionQueryRequest {
  categoryFilter: string;
  connectionFilter: string;
  typeFilter: string;
  nameFilter?: string;
  names?: boolean;
  where?: string;
}

export interface ConnectionQueryResponse {
  found: string[];
  names?: FoundName[];
}

export interface ConnectionRefreshRequest {
  connection: string;
}

export interface ConnectionRefreshResponse {
  added: string[];
  gone: string[];
  skipped: string[];
}

export interface ConnectionRemoveRequest {
  connections: string[];
}

export interface ConnectionTerminalRequest {
  connection: string;
  directory?: string | null;
}

export interface ConnectionToggleRequest {
  connection: string;
  state: boolean;
}

export interface ConnectionUpdateRequest {
  connection: string;
  name?: string;
  data?: Record<string, any>;
  category?: string;
  validate?: boolean;
  labels?: Record<string, string>;
  lastModified?: string;
}

export interface ControlSocketInfo {
  connection: string;
  name: string[];
  hosts: string[];
  path: string;
  token?: string;
}

export interface Cursor {
  column: number;
  row: number;
  visible: boolean;
}

export interface DaemonStatusResponse {
  version: string;
  runtime: string;
  pid: number;
  uptime: number;
  threads: number;
  clients: number;
  slots: Capacity;
  sessions: ShellStatus[];
  blobs: BlobUse;
  auditLost: number;
  activity: Activity;
  environment?: Surroundings;
}

export interface DecryptRequest {
  encrypted: Encrypted;
}

export interface DecryptResponse {
  decrypted: string;
}

export interface DialledHost {
  host: string;
  port: number;
  user: string;
  identities: string[];
  agent: boolean;
}

export interface DialledHosts {
  hosts?: DialledHost[];
  error?: Record<string, any>;
}

export interface DownloadRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  members?: (string | { base64: string; })[];
  archive?: boolean;
}

export interface DownloadTicketResponse {
  ticket: string;
  name: string;
  size: number | null;
}

export interface EncryptRequest {
  value: string;
  principals?: string[];
}

export interface EncryptResponse {
  encrypted: Encrypted;
}

export interface Encrypted {
  encryptedToken: _Token;
  secret: _Locked;
}

export interface EntryResponse {
  name: string | { base64: string; };
  type: string;
  size: number;
  mode: string;
  modified: string;
  uid: number;
  gid: number;
  owner: string;
  group: string;
  target: string | { base64: string; } | null;
}

export interface EntryToAdd {
  label?: string;
  name: string;
  data: Record<string, any>;
  category?: string[];
  labels?: Record<string, string>;
}

export interface EntryToChange {
  connection: string;
  name?: string;
  data?: Record<string, any>;
  category?: string[];
  labels?: Record<string, string>;
  lastModified?: string;
}

export interface Error {
  message: string;
  code: string;
}

export interface Event {
  number: number;
  time: string;
  kind: "connection" | "category" | "hostkey" | "link" | "shell" | "job" | "run" | "terminal" | "tunnel" | "approval" | "token" | "schedule" | "stream";
  change: string;
  connection?: string;
  connections?: string[];
  id?: string;
  session?: string;
  state?: string;
  exitCode?: number;
  name?: string;
  address?: string;
  code?: string;
  message?: string;
  clients?: number;
  token?: string;
  run?: string;
  expires?: string;
}

export interface EventStreamRequest {
  kinds?: ("connection" | "category" | "hostkey" | "link" | "shell" | "job" | "run" | "terminal" | "tunnel" | "approval" | "token" | "schedule")[];
  after?: number;
  ago?: number;
}

export interface EventTicketResponse {
  ticket: string;
}

export interface ExecLine {
  restarted?: boolean;
  begun?: boolean;
  stdout?: string;
  stderr?: string;
  exitCode?: number;
  error?: Record<string, any>;
}

export interface ExecRequest {
  wait?: number;
  fresh?: boolean;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  sendEnv?: Record<string, string>;
  command?: string;
  argv?: string[];
  saved?: Saved;
  timeout?: number;
  stdin?: string;
  cwd?: string;
  env?: Record<string, string>;
  encoding?: "utf-8" | "base64";
  start?: boolean;
  detachAfter?: number;
  input?: "body";
}

export interface ExecResponse {
  exitCode?: number;
  job?: string;
  stdout: string;
  stderr: string;
  waiting?: WaitingForInput;
  truncated?: boolean;
  restarted?: boolean;
}

export interface ExtractResponse {
  files: number;
  bytes: number;
  failed: FailedResponse[];
}

export interface FactGatherRequest {
  connections?: string[];
  connectionFilter?: string;
  categoryFilter?: string;
  typeFilter?: string;
  where?: string;
  parts?: string[];
  parallel?: number;
  timeout?: number;
}

export interface FactGatherResponse {
  gathered: GatheredFacts[];
}

export interface FactQueryRequest {
  connections?: string[];
  connectionFilter?: string;
  categoryFilter?: string;
  typeFilter?: string;
  where?: string;
  names?: string[];
  offset?: number;
  limit?: number;
}

export interface FactQueryResponse {
  machines: MachineFacts[];
  total: number;
}

export interface FailedResponse {
  path: string | { base64: string; };
  message: string;
}

export interface Failure {
  message: string;
  code: string;
  localizedMessage: string;
  cause: Record<string, any>;
  stackTrace: string[];
  suppressed: any[];
}

export interface FileStateInfo {
  kind: "file" | "directory" | "link" | "other" | "absent";
  size: number | null;
  sha256: string | null;
  mode: string | null;
  uid: number | null;
  gid: number | null;
}

export interface ForgottenHostKey {
  key: string;
  place: string;
  kept: string;
}

export interface FoundLine {
  name: string | { base64: string; };
  line: number;
  text: string;
}

export interface FoundName {
  category: string[];
  name: string[];
  type: string;
  usageCategory: string | null;
}

export interface GatheredFacts {
  connection: string;
  facts?: number;
  error?: Record<string, any>;
}

export interface GlobRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  pattern: string | { base64: string; };
}

export interface HandshakeAuth {
  type: string;
  authFileContent?: string;
  key?: string;
  token?: string;
}

export interface HandshakeClient {
  type: string;
  name: string;
}

export interface HandshakeRequest {
  auth: HandshakeAuth;
  client: HandshakeClient;
}

export interface HandshakeResponse {
  sessionToken: string;
}

export interface HostDefaults {
  user?: string;
  port?: number;
  keyFile?: string;
  gateway?: string;
}

export interface HostFilter {
  connectionFilter?: string;
  nameFilter?: string;
}

export interface HostKeyForgetRequest {
  connection: string;
  host?: string;
}

export interface HostKeyForgetResponse {
  keys: ForgottenHostKey[];
}

export interface HostKeyTrustRequest {
  connection: string;
  host: string;
  hostKey: string;
}

export interface InventoryAddRequest {
  name: string;
  ansible?: string;
  command?: string[];
  file?: string;
  category?: string[];
  every?: number;
  timeout?: number;
  defaults?: HostDefaults;
  replace?: boolean;
  dryRun?: boolean;
}

export interface InventoryChanges {
  hosts: number;
  added: string[];
  changed: string[];
  vanished: string[];
  returned: string[];
  leftOut: LeftOutHost[];
}

export interface InventoryInfo {
  name: string;
  ansible: string | null;
  command: string[] | null;
  file: string | null;
  category: string[];
  every: number | null;
  timeout: number;
  defaults: Record<string, any>;
  daemon: string;
  renewed: string | null;
  next: string | null;
  hosts: number;
  vanished: number;
  error: string | null;
}

export interface InventoryNameRequest {
  name: string;
}

export interface InventoryQueryRequest {
  name?: string;
}

export interface InventoryQueryResponse {
  inventories: InventoryInfo[];
}

export interface InventoryRenewRequest {
  name: string;
  dryRun?: boolean;
}

export interface JobInfo {
  job: string;
  connection: string;
  session: string | null;
  name: string | null;
  key: string | null;
  command: string | string[] | null;
  locked?: boolean;
  state: "starting" | "running" | "exited" | "killed" | "timed_out" | "lost";
  exitCode: number | null;
  stdinOpen: boolean;
  created: string;
  ended: string | null;
  keep: number;
  stale: boolean;
  waiting?: WaitingForInput;
  token?: string;
}

export interface JobInputRequest {
  job: string;
  data?: string;
  eof?: boolean;
  encoding?: "utf-8" | "base64";
}

export interface JobKillRequest {
  job: string;
  signal?: "TERM" | "INT" | "HUP" | "QUIT" | "KILL" | "STOP" | "CONT" | "USR1" | "USR2" | "WINCH" | "ALRM";
  grace?: number;
}

export interface JobOrphan {
  job: string;
  state: "running" | "exited" | "killed" | "timed_out" | "lost";
  age: number | null;
  removed: boolean;
}

export interface JobOrphansRequest {
  connection: string;
  remove?: boolean;
  minAge?: number;
}

export interface JobOrphansResponse {
  orphans: JobOrphan[];
}

export interface JobOutputRequest {
  job: string;
  stdout?: number;
  stderr?: number;
  wait?: number;
  until?: "output" | "exit" | "input";
  maxBytes?: number;
  encoding?: "utf-8" | "base64";
}

export interface JobOutputResponse {
  state: "starting" | "running" | "exited" | "killed" | "timed_out" | "lost";
  exitCode: number | null;
  stdout: StreamResponse;
  stderr: StreamResponse;
  truncated: boolean;
  stale: boolean;
  waiting?: WaitingForInput;
  directory?: string;
}

export interface JobQueryRequest {
  connectionFilter?: string;
  where?: string;
  categoryFilter?: string;
  typeFilter?: string;
  states?: ("starting" | "running" | "exited" | "killed" | "timed_out" | "lost")[];
  name?: string;
  minAge?: number;
  maxAge?: number;
}

export interface JobQueryResponse {
  jobs: JobInfo[];
}

export interface JobRemoveRequest {
  job: string;
  force?: boolean;
}

export interface JobRequest {
  job: string;
}

export interface JobStartRequest {
  wait?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  sendEnv?: Record<string, string>;
  command?: string;
  argv?: string[];
  saved?: Saved;
  timeout?: number;
  stdin?: string;
  cwd?: string;
  env?: Record<string, string>;
  encoding?: "utf-8" | "base64";
  keep?: number;
  name?: string;
  key?: string;
  tellDirectory?: boolean;
}

export interface JobStartResponse {
  job: string;
  warning?: string;
}

export interface JobWaitRequest {
  job: string;
  wait?: number;
}

export interface KnownAuditLog {
  trail: string;
  host: string;
  directory: string;
  seq: number;
  time: string;
  state: "verified" | "copy" | "forked" | "elsewhere" | "unreadable" | "gone";
}

export interface LeftOutHost {
  host: string;
  reason: string;
}

export interface LentPassphrase {
  key: string;
  passphrase: string;
}

export interface ListFilesRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  recursive?: boolean;
}

export interface ListRequest {
  connection?: string;
}

export interface ListResponse {
  entries: EntryResponse[];
}

export interface ListedShell {
  connection: string;
  session?: string;
  state: string;
  uptime: number;
  idle: number;
  waiting: number;
  pid: number;
  directory: string | { base64: string; };
  since: string;
  runningSince?: string;
  running?: RunningCommandInfo;
}

export interface LoanInfo {
  user: string;
  began: string;
  until: string;
}

export interface LogCommand {
  connection: string;
  argv: string[];
}

export interface LogRequest {
  follow?: boolean;
  lines?: number | null;
}

export interface MachineFacts {
  connection: string;
  name: string[];
  labels: Record<string, string>;
  facts: Record<string, any>;
  gathered: Record<string, string>;
}

export interface MembersRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  members?: (string | { base64: string; })[];
}

export interface MkdirRequest {
  wait?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  mode?: string;
  parents?: boolean;
}

export interface MoveRequest {
  wait?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  source: string | { base64: string; };
  target: string | { base64: string; };
  overwrite?: boolean;
}

export interface MultiplexCancelRequest {
  connection: string;
  kind: "local" | "remote" | "dynamic";
  host?: string;
  port?: number;
  socket?: string;
  to?: Address;
  toSocket?: string;
}

export interface MultiplexCloseRequest {
  connections?: string[];
}

export interface MultiplexCloseResponse {
  closed: number;
}

export interface MultiplexConfigRequest {
  filters?: HostFilter[];
  connections?: string[];
  program: string[];
}

export interface MultiplexConfigResponse {
  text: string;
  hosts: SshHostInfo[];
  unnamed: string[][];
}

export interface MultiplexForgetResponse {
  file?: string;
}

export interface MultiplexForwardRequest {
  connection: string;
  kind: "local" | "remote" | "dynamic";
  host?: string;
  port?: number;
  socket?: string;
  to?: Address;
  toSocket?: string;
}

export interface MultiplexForwardResponse {
  host: string;
  port: number;
}

export interface MultiplexKeepResponse {
  file: string;
  hosts: SshHostInfo[];
  unnamed: string[][];
}

export interface MultiplexOpenRequest {
  connections?: string[];
}

export interface MultiplexOpenResponse {
  sockets: ControlSocketInfo[];
}

export interface MultiplexQueryResponse {
  sockets: ControlSocketInfo[];
}

export interface MultiplexRenewRequest {
  connection: string;
}

export interface Nothing {
}

export interface Notify {
  on?: ("missed" | "skipped" | "refused" | "failed" | "unreachable" | "done")[];
  command?: string[];
  webhook?: Webhook;
}

export interface OperationFailed {
  error: Failure;
}

export interface PassphraseRequest {
  user: string;
  passphrase: string;
  newPassphrase: string;
}

export interface PipeRequest {
  term?: string;
  columns?: number;
  rows?: number;
  sendEnv?: Record<string, string>;
  command?: string;
  argv?: string[];
  saved?: Saved;
  connection: string;
  tcp?: Address;
  pty?: boolean;
  env?: Record<string, string>;
  agent?: boolean;
  modes?: string[];
}

export interface ProblemInfo {
  plugin: string;
  distribution: string;
  reason: string;
}

export interface ProposedPattern {
  words: string[];
  names: string[];
  seconds: number;
}

export interface ReadRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  passed?: boolean;
}

export interface RecordedLine {
  recording: string;
  seconds: number;
  text: string;
}

export interface RecordingInfo {
  recording: string;
  connection: string | null;
  command: string | null;
  locked?: boolean;
  columns: number;
  rows: number;
  began: string;
  seconds: number | null;
  size: number;
  active: boolean;
}

export interface RecordingQueryRequest {
  connectionFilter?: string;
}

export interface RecordingQueryResponse {
  recordings: RecordingInfo[];
}

export interface RecordingRequest {
  recording: string;
}

export interface RecordingSearchRequest {
  contains: string;
  recordings?: string[];
}

export interface RecordingSearchResponse {
  matches: RecordedLine[];
  complete: boolean;
}

export interface RecoveryCreateRequest {
  user: string;
  passphrase: string;
  shares?: number;
  threshold?: number;
}

export interface RecoveryKey {
  recovery: string;
  user: string;
  shares: number;
  threshold: number;
  created: string;
  used: string | null;
}

export interface RecoveryQueryResponse {
  recoveries: RecoveryKey[];
}

export interface RecoveryRevokeRequest {
  recovery: string;
}

export interface RecoveryRotateRequest {
  recovery: string;
  passphrase: string;
}

export interface RecoveryUseRequest {
  shares: string[];
  newPassphrase?: string;
}

export interface RecoveryUseResponse {
  recovery: string;
  user: string;
}

export interface RecoveryWordsResponse {
  recovery: string;
  user: string;
  threshold: number;
  shares: string[];
}

export interface RemovePathRequest {
  wait?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  recursive?: boolean;
}

export interface RemoveRequest {
  user: string;
  passphrase?: string;
  force?: boolean;
}

export interface RemoveResponse {
  connections: string[];
  resealed: string[];
  heir: string | null;
  lost: string[];
}

export interface RunGroup {
  connections: string[];
  names: string[];
  state: string;
  exitCode: number | null;
  stdout: string;
  stderr: string;
  truncated?: boolean;
  error?: Record<string, any>;
  locked?: boolean;
}

export interface RunInfo {
  run: string;
  name: string | null;
  state: "pending" | "running" | "waiting" | "paused" | "stopping" | "done" | "failed" | "stopped";
  reason: string | null;
  command: string | string[] | null;
  locked?: boolean;
  as: string;
  why: string;
  targets: number;
  counts: Record<string, number>;
  wave: number;
  waves: number[];
  parallel: number;
  stopAfter: number | null;
  retryOf: string | null;
  token: string | null;
  submitted: string;
  began: string | null;
  ended: string | null;
  rate: number | null;
  left: number | null;
  daemons: string[];
  cells?: string;
}

export interface RunInfoRequest {
  run: string;
  cells?: boolean;
}

export interface RunOutputRequest {
  run: string;
  connection?: string;
  offset?: number;
  limit?: number;
}

export interface RunOutputResponse {
  groups: RunGroup[];
  total: number;
}

export interface RunQueryRequest {
  states?: ("pending" | "running" | "waiting" | "paused" | "stopping" | "done" | "failed" | "stopped")[];
  name?: string;
  limit?: number;
}

export interface RunQueryResponse {
  runs: RunInfo[];
}

export interface RunRemoveRequest {
  run: string;
}

export interface RunRequest {
  run: string;
}

export interface RunRetryRequest {
  run: string;
  states?: ("failed" | "unreachable" | "unknown" | "stopped")[];
}

export interface RunStartRequest {
  connections?: string[];
  connectionFilter?: string;
  categoryFilter?: string;
  typeFilter?: string;
  where?: string;
  wait?: number;
  fresh?: boolean;
  sendEnv?: Record<string, string>;
  command?: string;
  argv?: string[];
  saved?: Saved;
  timeout?: number;
  stdin?: string;
  cwd?: string;
  env?: Record<string, string>;
  encoding?: "utf-8" | "base64";
  session?: string;
  elevate?: { user?: string; password?: string; };
  parallel?: number;
  start?: boolean;
  name?: string;
  script?: Script;
  facts?: string[];
  sudo?: boolean;
  waves?: any[];
  wavePause?: number;
  waveApproval?: boolean;
  stopAfter?: number | string;
  retries?: number;
  retryDelay?: number;
  runTimeout?: number;
  as?: "shell" | "job";
  key?: string;
  keep?: number;
  dryRun?: boolean;
}

export interface RunStartResponse {
  run?: string;
  kept?: boolean;
  targets: number;
  waves: number[];
  as: string;
  why: string;
  locked?: string[];
  warning?: string;
  connections?: string[];
  names?: string[];
}

export interface RunStopRequest {
  run: string;
  kill?: boolean;
}

export interface RunTarget {
  connection: string;
  name: string | null;
  state: "waiting" | "starting" | "done" | "failed" | "unreachable" | "unknown" | "stopped";
  exitCode: number | null;
  seconds: number | null;
  wave: number;
  tries: number;
  stdout?: string;
  stderr?: string;
  truncated?: boolean;
  error?: Record<string, any>;
  job?: string;
  daemon?: string;
  locked?: boolean;
}

export interface RunTargetsRequest {
  run: string;
  states?: ("waiting" | "starting" | "done" | "failed" | "unreachable" | "unknown" | "stopped")[];
  offset?: number;
  limit?: number;
  output?: number;
}

export interface RunTargetsResponse {
  targets: RunTarget[];
  total: number;
}

export interface RunWaitRequest {
  run: string;
  wait?: number;
}

export interface RunningCommandInfo {
  command: string;
  client: string;
  token?: string;
}

export interface Saved {
  name: string;
  arguments?: Record<string, any>;
}

export interface SavedCommandFields {
  name: string;
  argv: any[];
  parameters?: Record<string, any>;
  description?: string;
  mayRunOthers?: boolean;
}

export interface ScheduleAddRequest {
  cron?: string;
  every?: number;
  timezone?: string;
  name: string;
  jitter?: number;
  overlap?: "skip" | "queue";
  catchUp?: "none" | "latest" | "all";
  until?: string;
  run: RunStartRequest;
  notify?: Notify;
}

export interface ScheduleAddResponse {
  schedule: string;
  next: string;
  locked?: string[];
  warning?: string;
}

export interface ScheduleInfo {
  schedule: string;
  name: string;
  cron: string | null;
  every: number | null;
  timezone: string;
  jitter: number;
  overlap: string;
  catchUp: string;
  until: string | null;
  next: string | null;
  paused: string | null;
  overdue: boolean;
  lastRun: string | null;
  lastState: string | null;
  lastError: string | null;
  skipped: number;
  token: string | null;
  tokenName: string | null;
  run: Record<string, any>;
  notify: Record<string, any> | null;
}

export interface ScheduleNextRequest {
  schedule?: string;
  cron?: string;
  every?: number;
  timezone?: string;
  after?: string;
  count?: number;
}

export interface ScheduleNextResponse {
  times: string[];
}

export interface SchedulePauseRequest {
  schedule: string;
  reason?: string;
}

export interface ScheduleQueryRequest {
  name?: string;
}

export interface ScheduleQueryResponse {
  schedules: ScheduleInfo[];
}

export interface ScheduleRequest {
  schedule: string;
}

export interface ScheduleTriggerResponse {
  run: string;
}

export interface ScheduleUpdateRequest {
  schedule: string;
  name?: string;
  cron?: string;
  every?: number;
  timezone?: string;
  jitter?: number;
  overlap?: "skip" | "queue";
  catchUp?: "none" | "latest" | "all";
  until?: string | null;
  run?: RunStartRequest;
  notify?: Notify | null;
}

export interface ScheduleUpdateResponse {
  schedule: string;
  name: string;
  cron: string | null;
  every: number | null;
  timezone: string;
  jitter: number;
  overlap: string;
  catchUp: string;
  until: string | null;
  next: string | null;
  paused: string | null;
  overdue: boolean;
  lastRun: string | null;
  lastState: string | null;
  lastError: string | null;
  skipped: number;
  token: string | null;
  tokenName: string | null;
  run: Record<string, any>;
  notify: Record<string, any> | null;
  locked?: string[];
  warning?: string;
}

export interface Script {
  text: string;
  arguments?: string[];
}

export interface ScriptRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  blob: string;
}

export interface ScriptResponse {
  path: string | { base64: string; };
}

export interface SearchRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  text: string;
  names?: string;
  ignoreCase?: boolean;
  most?: number;
  timeout?: number;
}

export interface SearchResponse {
  lines: FoundLine[];
  complete: boolean;
}

export interface ShellInfo {
  shellDialect: number;
  osType: string;
  osName: string;
  ttyState: string;
  temp: string;
  restarted?: boolean;
}

export interface ShellListResponse {
  shells: ListedShell[];
}

export interface ShellStatus {
  connection: string;
  session?: string;
  state: string;
  uptime: number;
  idle: number;
  waiting: number;
}

export interface ShownResponse {
  url?: string;
}

export interface SourceInfo {
  source: string;
  description: string;
  schema: Record<string, any>;
}

export interface SshHostInfo {
  connection: string;
  names: string[];
  user?: string;
  port: number;
}

export interface StartRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  tellRestarted?: boolean;
}

export interface StatRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  path: string | { base64: string; };
  follow?: boolean;
}

export interface StatusResponse {
  hasUsers: boolean;
  user: string | null;
  principals: string[];
  users: string[];
}

export interface StopRequest {
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  all?: boolean;
}

export interface StreamResponse {
  data: string;
  next: number;
  eof: boolean;
  size: number;
}

export interface SudoRequest {
  connection?: string;
  category?: string;
  password?: string | null;
}

export interface SudoResponse {
  connection?: string;
  category?: string;
}

export interface Surroundings {
  path: string;
  agentSocket?: string;
}

export interface TerminalInfo {
  terminal: string;
  connection: string;
  session: string | null;
  command: string | string[] | null;
  locked?: boolean;
  term: string;
  columns: number;
  rows: number;
  state: "running" | "exited" | "lost" | "closed";
  exitCode: number | null;
  clients: number;
  idle: number;
  opened: string;
  ended: string | null;
  recording: "active" | "complete" | "cut" | "failed" | null;
  waiting?: WaitingForInput;
}

export interface TerminalInputRequest {
  terminal: string;
  data: string;
  encoding?: "utf-8" | "base64";
}

export interface TerminalOpenRequest {
  term?: string;
  columns?: number;
  rows?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  sendEnv?: Record<string, string>;
  command?: string;
  argv?: string[];
  saved?: Saved;
  record?: boolean;
}

export interface TerminalOutputRequest {
  terminal: string;
  offset?: number;
  wait?: number;
  maxBytes?: number;
  encoding?: "utf-8" | "base64";
}

export interface TerminalOutputResponse {
  data: string;
  offset: number;
  next: number;
  eof: boolean;
  state: "running" | "exited" | "lost" | "closed";
  exitCode: number | null;
}

export interface TerminalQueryRequest {
  connectionFilter?: string;
  categoryFilter?: string;
  typeFilter?: string;
  where?: string;
}

export interface TerminalQueryResponse {
  terminals: TerminalInfo[];
}

export interface TerminalRequest {
  terminal: string;
}

export interface TerminalResizeRequest {
  terminal: string;
  columns: number;
  rows: number;
}

export interface TerminalScreenRequest {
  terminal: string;
  wait?: number;
  since?: number;
  contains?: string;
}

export interface TerminalScreenResponse {
  columns: number;
  rows: number;
  lines: string[];
  cursor: Cursor;
  title: string;
  alternate: boolean;
  offset: number;
  state: "running" | "exited" | "lost" | "closed";
  exitCode: number | null;
  waiting?: WaitingForInput;
}

export interface TerminalTicketResponse {
  ticket: string;
}

export interface TokenCheckRequest {
  path: string;
  request: Record<string, any>;
  id?: string;
}

export interface TokenCheckResponse {
  effect: "allow" | "ask" | "deny" | "unknown";
  code?: string;
  message?: string;
  rule?: number | string | null;
  argv?: string[];
}

export interface TokenCreateRequest {
  name: string;
  scopes: string[];
  connections?: string[];
  categories?: string[];
  rules?: (Record<string, any>)[];
  quotaPerDay?: number;
  maxConcurrent?: number;
  from?: string[];
  readOnly?: boolean;
  expires: number | string;
  lendSecrets?: boolean | Record<string, any>;
}

export interface TokenCreateResponse {
  name: string;
  scopes: string[];
  connections?: string[];
  categories?: string[];
  rules?: (Record<string, any>)[];
  quotaPerDay?: number;
  maxConcurrent?: number;
  from?: string[];
  readOnly?: boolean;
  id: string;
  expires: string;
  created: string;
  parent?: string | null;
  state: "valid" | "expired" | "revoked";
  usedToday: number;
  lastUsed?: string | null;
  lent: LoanInfo | null;
  token: string;
}

export interface TokenInfo {
  name: string;
  scopes: string[];
  connections?: string[];
  categories?: string[];
  rules?: (Record<string, any>)[];
  quotaPerDay?: number;
  maxConcurrent?: number;
  from?: string[];
  readOnly?: boolean;
  id: string;
  expires: string;
  created: string;
  parent?: string | null;
  state: "valid" | "expired" | "revoked";
  usedToday: number;
  lastUsed?: string | null;
  lent: LoanInfo | null;
}

export interface TokenLendRequest {
  id: string;
  seconds?: number;
  end?: boolean;
}

export interface TokenOwnResponse {
  id: string | null;
  name: string | null;
  expires: string | null;
  scopes: string[];
  actions: string[];
  commands: "text" | "argv" | null;
  connections: string[];
  categories: string[];
  rules: (Record<string, any>)[];
  quotaPerDay: number | null;
  usedToday: number | null;
  maxConcurrent: number | null;
  from: string[] | null;
  parent: string | null;
  readOnly: boolean;
  lent: LoanInfo | null;
}

export interface TokenQueryResponse {
  tokens: TokenInfo[];
}

export interface TokenRenewRequest {
  id: string;
  expires?: number | string;
}

export interface TokenRequest {
  id: string;
}

export interface TunnelFault {
  code: string;
  message: string;
}

export interface TunnelInfo {
  connection: string;
  state: string;
  wanted: boolean;
  address: string | null;
  since: string | null;
  retries: number;
  nextRetry: string | null;
  lastError: TunnelFault | null;
  relay: string | null;
  streams: number;
  waiting: number;
  bytesIn: number;
  bytesOut: number;
}

export interface TunnelQueryRequest {
  connections?: string[];
}

export interface TunnelQueryResponse {
  tunnels: TunnelInfo[];
}

export interface TypeInfo {
  type: string;
  usageCategory: string;
  description: string;
  distribution: string;
  version: string;
  toggled: boolean;
  schema: Record<string, any>;
}

export interface TypesResponse {
  types: TypeInfo[];
  sources: SourceInfo[];
  problems: ProblemInfo[];
}

export interface UndoQueryRequest {
  token?: string;
  since?: string;
  until?: string;
  connectionFilter?: string;
}

export interface UndoQueryResponse {
  changes: ChangeInfo[];
}

export interface UndoReadRequest {
  change: string;
}

export interface UndoRestoreRequest {
  connection: string;
  changes: string[];
  dryRun?: boolean;
  force?: boolean;
}

export interface UndoRestoreResponse {
  results: UndoneInfo[];
}

export interface UndoneInfo {
  change: string;
  path: string | { base64: string; };
  state: "restored" | "restorable" | "unchanged" | "changed_since" | "not_kept" | "failed";
  message: string | null;
  restoredAs: string | null;
}

export interface UnlockRequest {
  user: string;
  passphrase: string;
}

export interface UnlockResponse {
  recoveries: UsedRecovery[];
}

export interface UploadResponse {
  changes?: string[];
  notKept?: string;
  bytes: number;
  sha256: string;
}

export interface UsedRecovery {
  recovery: string;
  used: string;
}

export interface VersionResponse {
  version: string;
  canonicalVersion: string;
  buildVersion: string;
  jvmVersion: string;
  pro: boolean;
}

export interface WaitingForInput {
  since: string;
  lines: string[];
  secret: boolean;
  certain: boolean;
}

export interface WebConfirmRequest {
  wait?: number;
  user?: string;
  passphrase?: string;
}

export interface WebConfirmResponse {
  valid: number;
}

export interface WebLoginRequest {
  ticket: string;
}

export interface WebLoginResponse {
  sessionToken: string;
  idle: number;
}

export interface WebTicketRequest {
  sameUser?: boolean;
}

export interface WebTicketResponse {
  ticket: string;
  valid: number;
}

export interface Webhook {
  url: string;
  secret: string;
}

export interface WriteRequest {
  wait?: number;
  connection: string;
  session?: string;
  elevate?: { user?: string; password?: string; };
  blob: string;
  path: string | { base64: string; };
  mode?: string;
  replaces?: string;
  create?: boolean;
}

export interface _Locked {
  encryptedValue: string;
  type: "locked";
}

export interface _Token {
  token: string;
}

export interface Endpoints {
  "/approval/decide": { request: ApprovalDecideRequest; answer: ApprovalInfo };
  "/approval/query": { request: ApprovalQueryRequest; answer: ApprovalQueryResponse };
  "/audit/forget": { request: AuditForgetRequest; answer: any };
  "/audit/query": { request: AuditQueryRequest; answer: AuditQueryResponse };
  "/audit/record": { request: AuditRecordRequest; answer: AuditRecordResponse };
  "/audit/verify": { request: Nothing; answer: AuditVerifyResponse };
  "/ca/host": { request: CaHostRequest; answer: CaHostResponse };
  "/ca/init": { request: CaInitRequest; answer: CaInitResponse };
  "/ca/limit": { request: CaLimitRequest; answer: CaInfo };
  "/ca/query": { request: CaQueryRequest; answer: CaQueryResponse };
  "/ca/remove": { request: CaNameRequest; answer: any };
  "/ca/revoke": { request: CaRevokeRequest; answer: CaRevokeResponse };
  "/ca/rotate": { request: CaRotateRequest; answer: CaTrustResponse };
  "/ca/trust": { request: CaNameRequest; answer: CaTrustResponse };
  "/category/add": { request: CategoryAddRequest; answer: CategoryAddResponse };
  "/category/info": { request: CategoryInfoRequest; answer: CategoryInfoResponse };
  "/category/query": { request: CategoryQueryRequest; answer: CategoryQueryResponse };
  "/category/remove": { request: CategoryRemoveRequest; answer: any };
  "/command/query": { request: Nothing; answer: CommandQueryResponse };
  "/command/remove": { request: CommandNameRequest; answer: any };
  "/command/save": { request: CommandSaveRequest; answer: CommandSaveResponse };
  "/connection/add": { request: ConnectionAddRequest; answer: ConnectionAddResponse };
  "/connection/apply": { request: ApplyRequest; answer: ApplyResponse };
  "/connection/browse": { request: ConnectionBrowseRequest; answer: ShownResponse };
  "/connection/elevate": { request: ConnectionElevateRequest; answer: ConnectionElevateResponse };
  "/connection/environment": { request: ConnectionEnvironmentRequest; answer: ConnectionEnvironmentResponse };
  "/connection/info": { request: ConnectionInfoRequest; answer: ConnectionInfoResponse };
  "/connection/label": { request: ConnectionLabelRequest; answer: ConnectionLabelResponse };
  "/connection/login": { request: ConnectionLoginRequest; answer: ConnectionLoginResponse };
  "/connection/query": { request: ConnectionQueryRequest; answer: ConnectionQueryResponse };
  "/connection/refresh": { request: ConnectionRefreshRequest; answer: ConnectionRefreshResponse };
  "/connection/remove": { request: ConnectionRemoveRequest; answer: any };
  "/connection/terminal": { request: ConnectionTerminalRequest; answer: ShownResponse };
  "/connection/toggle": { request: ConnectionToggleRequest; answer: any };
  "/connection/types": { request: Nothing; answer: TypesResponse };
  "/connection/update": { request: ConnectionUpdateRequest; answer: any };
  "/daemon/status": { request: Nothing; answer: DaemonStatusResponse };
  "/daemon/stop": { request: Nothing; answer: any };
  "/daemon/version": { request: Nothing; answer: VersionResponse };
  "/event/stream": { request: EventStreamRequest; answer: any };
  "/event/ticket": { request: Nothing; answer: EventTicketResponse };
  "/fact/gather": { request: FactGatherRequest; answer: FactGatherResponse };
  "/fact/query": { request: FactQueryRequest; answer: FactQueryResponse };
  "/fs/archive": { request: MembersRequest; answer: any };
  "/fs/attributes": { request: AttributesRequest; answer: ChangeResponse };
  "/fs/blob": { request: any; answer: BlobResponse };
  "/fs/checksum": { request: MembersRequest; answer: ChecksumsResponse };
  "/fs/extract": { request: any; answer: ExtractResponse };
  "/fs/glob": { request: GlobRequest; answer: ListResponse };
  "/fs/list": { request: ListFilesRequest; answer: ListResponse };
  "/fs/mkdir": { request: MkdirRequest; answer: ChangeResponse };
  "/fs/move": { request: MoveRequest; answer: ChangeResponse };
  "/fs/read": { request: ReadRequest; answer: any };
  "/fs/remove": { request: RemovePathRequest; answer: ChangeResponse };
  "/fs/script": { request: ScriptRequest; answer: ScriptResponse };
  "/fs/search": { request: SearchRequest; answer: SearchResponse };
  "/fs/stat": { request: StatRequest; answer: EntryResponse };
  "/fs/ticket": { request: DownloadRequest; answer: DownloadTicketResponse };
  "/fs/upload": { request: any; answer: UploadResponse };
  "/fs/write": { request: WriteRequest; answer: ChangeResponse };
  "/handshake": { request: HandshakeRequest; answer: HandshakeResponse };
  "/hostkey/forget": { request: HostKeyForgetRequest; answer: HostKeyForgetResponse };
  "/hostkey/trust": { request: HostKeyTrustRequest; answer: any };
  "/inventory/add": { request: InventoryAddRequest; answer: InventoryChanges };
  "/inventory/query": { request: InventoryQueryRequest; answer: InventoryQueryResponse };
  "/inventory/remove": { request: InventoryNameRequest; answer: any };
  "/inventory/renew": { request: InventoryRenewRequest; answer: InventoryChanges };
  "/job/info": { request: JobRequest; answer: JobInfo };
  "/job/input": { request: JobInputRequest; answer: any };
  "/job/kill": { request: JobKillRequest; answer: any };
  "/job/orphans": { request: JobOrphansRequest; answer: JobOrphansResponse };
  "/job/output": { request: JobOutputRequest; answer: JobOutputResponse };
  "/job/query": { request: JobQueryRequest; answer: JobQueryResponse };
  "/job/remove": { request: JobRemoveRequest; answer: any };
  "/job/start": { request: JobStartRequest; answer: JobStartResponse };
  "/job/wait": { request: JobWaitRequest; answer: JobInfo };
  "/multiplex/cancel": { request: MultiplexCancelRequest; answer: any };
  "/multiplex/close": { request: MultiplexCloseRequest; answer: MultiplexCloseResponse };
  "/multiplex/config": { request: MultiplexConfigRequest; answer: MultiplexConfigResponse };
  "/multiplex/forget": { request: Nothing; answer: MultiplexForgetResponse };
  "/multiplex/forward": { request: MultiplexForwardRequest; answer: MultiplexForwardResponse };
  "/multiplex/keep": { request: MultiplexConfigRequest; answer: MultiplexKeepResponse };
  "/multiplex/open": { request: MultiplexOpenRequest; answer: MultiplexOpenResponse };
  "/multiplex/query": { request: Nothing; answer: MultiplexQueryResponse };
  "/multiplex/renew": { request: MultiplexRenewRequest; answer: any };
  "/recording/query": { request: RecordingQueryRequest; answer: RecordingQueryResponse };
  "/recording/read": { request: RecordingRequest; answer: any };
  "/recording/search": { request: RecordingSearchRequest; answer: RecordingSearchResponse };
  "/run/info": { request: RunInfoRequest; answer: RunInfo };
  "/run/output": { request: RunOutputRequest; answer: RunOutputResponse };
  "/run/pause": { request: RunRequest; answer: any };
  "/run/query": { request: RunQueryRequest; answer: RunQueryResponse };
  "/run/remove": { request: RunRemoveRequest; answer: any };
  "/run/resume": { request: RunRequest; answer: any };
  "/run/retry": { request: RunRetryRequest; answer: RunStartResponse };
  "/run/start": { request: RunStartRequest; answer: RunStartResponse };
  "/run/stop": { request: RunStopRequest; answer: any };
  "/run/targets": { request: RunTargetsRequest; answer: RunTargetsResponse };
  "/run/wait": { request: RunWaitRequest; answer: RunInfo };
  "/schedule/add": { request: ScheduleAddRequest; answer: ScheduleAddResponse };
  "/schedule/next": { request: ScheduleNextRequest; answer: ScheduleNextResponse };
  "/schedule/pause": { request: SchedulePauseRequest; answer: any };
  "/schedule/query": { request: ScheduleQueryRequest; answer: ScheduleQueryResponse };
  "/schedule/remove": { request: ScheduleRequest; answer: any };
  "/schedule/resume": { request: ScheduleRequest; answer: any };
  "/schedule/trigger": { request: ScheduleRequest; answer: ScheduleTriggerResponse };
  "/schedule/update": { request: ScheduleUpdateRequest; answer: ScheduleUpdateResponse };
  "/secret/decrypt": { request: DecryptRequest; answer: DecryptResponse };
  "/secret/encrypt": { request: EncryptRequest; answer: EncryptResponse };
  "/secret/sudo": { request: SudoRequest; answer: SudoResponse };
  "/shell/broadcast": { request: BroadcastRequest; answer: any };
  "/shell/exec": { request: ExecRequest; answer: ExecResponse };
  "/shell/list": { request: ListRequest; answer: ShellListResponse };
  "/shell/start": { request: StartRequest; answer: ShellInfo };
  "/shell/stop": { request: StopRequest; answer: any };
  "/terminal/close": { request: TerminalRequest; answer: any };
  "/terminal/input": { request: TerminalInputRequest; answer: any };
  "/terminal/open": { request: TerminalOpenRequest; answer: TerminalInfo };
  "/terminal/output": { request: TerminalOutputRequest; answer: TerminalOutputResponse };
  "/terminal/query": { request: TerminalQueryRequest; answer: TerminalQueryResponse };
  "/terminal/resize": { request: TerminalResizeRequest; answer: any };
  "/terminal/screen": { request: TerminalScreenRequest; answer: TerminalScreenResponse };
  "/terminal/ticket": { request: TerminalRequest; answer: TerminalTicketResponse };
  "/token/check": { request: TokenCheckRequest; answer: TokenCheckResponse };
  "/token/create": { request: TokenCreateRequest; answer: TokenCreateResponse };
  "/token/info": { request: Nothing; answer: TokenOwnResponse };
  "/token/lend": { request: TokenLendRequest; answer: TokenInfo };
  "/token/query": { request: Nothing; answer: TokenQueryResponse };
  "/token/renew": { request: TokenRenewRequest; answer: TokenInfo };
  "/token/revoke": { request: TokenRequest; answer: any };
  "/tunnel/query": { request: TunnelQueryRequest; answer: TunnelQueryResponse };
  "/undo/query": { request: UndoQueryRequest; answer: UndoQueryResponse };
  "/undo/read": { request: UndoReadRequest; answer: any };
  "/undo/restore": { request: UndoRestoreRequest; answer: UndoRestoreResponse };
  "/vault/lock": { request: Nothing; answer: any };
  "/vault/recovery/create": { request: RecoveryCreateRequest; answer: RecoveryWordsResponse };
  "/vault/recovery/query": { request: Nothing; answer: RecoveryQueryResponse };
  "/vault/recovery/revoke": { request: RecoveryRevokeRequest; answer: any };
  "/vault/recovery/rotate": { request: RecoveryRotateRequest; answer: RecoveryWordsResponse };
  "/vault/recovery/use": { request: RecoveryUseRequest; answer: RecoveryUseResponse };
  "/vault/status": { request: Nothing; answer: StatusResponse };
  "/vault/unlock": { request: UnlockRequest; answer: UnlockResponse };
  "/vault/user/add": { request: AddRequest; answer: any };
  "/vault/user/passphrase": { request: PassphraseRequest; answer: any };
  "/vault/user/remove": { request: RemoveRequest; answer: RemoveResponse };
  "/web/confirm": { request: WebConfirmRequest; answer: WebConfirmResponse };
  "/web/login": { request: WebLoginRequest; answer: WebLoginResponse };
  "/web/logout": { request: Nothing; answer: any };
  "/web/ticket": { request: WebTicketRequest; answer: WebTicketResponse };
}

export type Answer<Path> = Path extends keyof Endpoints ? Endpoints[Path]["answer"] : any;
