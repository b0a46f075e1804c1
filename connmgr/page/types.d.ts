// Types that the page's modules speak of; no browser gets this file. Each of the API's messages is in contract.d.ts.

/** A connection as the store has it. */
type Connection = {
  connection: string;
  category: string[];
  name: string[];
  type: string;
  usageCategory: string | null;
  folded: string;
  order: string;
};
type Category = { category: string; name: string[] };
type ConnectionInfo = import("./contract.d.ts").ConnectionInfo;

/** What a connection of the store is called. */
type Named = { category: string[]; name: string[]; type: string };

type Route = { view: string; path: string[]; query: URLSearchParams };

type View = { component: (props: { path: string[]; query: URLSearchParams }) => any; badge?: () => number };

/** What somebody can do from the palette, by a key, or on a connection. */
type Command = {
  /** What it does, as a verb with its noun. */
  name: string;
  /** The actions of the API that it needs. */
  actions?: string[];
  /** Given where it is about one connection, whose id `run` gets. */
  on?: "connection";
  /** Whether it applies to a connection of the store. */
  fits?: (connection: any) => boolean;
  /** A key that runs it, such as `/` or `g h`. */
  key?: string;
  /** A few words more. */
  hint?: string;
  run: (given?: any) => unknown;
};

/**
 * A JSON Schema, with a few words more: `title` labels a field that a view has, `choices` are pairs of a value and what
 * is said of it, of which an array may have `several`, and `format` may be the type of an input, `words` (a list on one line), `argv` (a list whose lines may
 * be empty), `pairs` (`name=value` a line) or `json`.
 */
type Schema = Record<string, any>;

/**
 * A column: its head; its width, as a share of what is left where it is a number; what it shows of a thing, which is a
 * text of a remote host, a state or elements; and the class of that.
 */
type Column<T> = [head: string, width: string | number, cell: (item: T) => any, look?: string];

/** What can be done: its name, the action of the API that it needs, the work, and the look of its button. */
type Deed = [name: string, action: string, work: () => unknown, look?: string] | false | null | undefined;

/** The rows of the hub. */
type Folder = { key: string; depth: number; category: string[]; id?: string; count: number; isOpen: boolean };
type Leaf = { key: string; depth: number; one: Connection; isLoose?: boolean };
type Item = Folder | Leaf;

/** What the form of a connection holds, and what it does with that. */
type Values = {
  name: string;
  data: Record<string, any>;
  category: string;
  labels?: Record<string, string>;
  validate?: boolean;
};
type Draft = {
  title: string;
  yes: string;
  isNew?: boolean;
  before: Values;
  submit: (values: any) => Promise<unknown>;
  /** Opens the form again with what is stored by now. */
  anew?: () => Promise<unknown>;
};

type Approval = import("./contract.d.ts").ApprovalInfo;
type Change = import("./contract.d.ts").ChangeInfo;
type Inventory = import("./contract.d.ts").InventoryInfo;
type InventoryChanges = import("./contract.d.ts").InventoryChanges;
type JobInfo = import("./contract.d.ts").JobInfo;
type Line = import("./contract.d.ts").BroadcastLine;
type Machine = import("./contract.d.ts").MachineFacts;
type Recovery = import("./contract.d.ts").RecoveryKey;
type RunInfo = import("./contract.d.ts").RunInfo;
type Schedule = import("./contract.d.ts").ScheduleInfo;
type Step = import("./contract.d.ts").AuditStep;
type Token = import("./contract.d.ts").TokenInfo;
type Tunnel = import("./contract.d.ts").TunnelInfo;
