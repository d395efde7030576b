// Written by `npm run protobuf` from src/relay/*.proto; a test compares.
import { allEntries, bool, bytes, int32, int64, list, message, table, text } from '../wire/protobuf/table.ts'

const Value = table({ string_value: [3, text] })
const Field = table({ key: [1, text], value: [2, message(Value)] })
const Struct = table({ fields: [1, list(message(Field))] })
const Node = table({ id: [1, text], cluster: [2, text], metadata: [3, message(Struct)] })
const Status = table({ code: [1, int32], message: [2, text] })
const DeltaDiscoveryRequest = table({
  node: [1, message(Node)],
  type_url: [2, text],
  resource_names_subscribe: [3, list(text)],
  resource_names_unsubscribe: [4, list(text)],
  initial_resource_versions: [5, allEntries],
  response_nonce: [6, text],
  error_detail: [7, message(Status)],
})
const Any = table({ type_url: [1, text], value: [2, bytes] })
const Resource = table({ version: [1, text], resource: [2, message(Any)], name: [3, text] })
const ControlPlane = table({ identifier: [1, text] })
const DeltaDiscoveryResponse = table({
  system_version_info: [1, text],
  resources: [2, list(message(Resource))],
  type_url: [4, text],
  nonce: [5, text],
  removed_resources: [6, list(text)],
  control_plane: [7, message(ControlPlane)],
})
const EncodedResponse = table({
  system_version_info: [1, text],
  resources: [2, list(bytes)],
  type_url: [4, text],
  nonce: [5, text],
  removed_resources: [6, list(text)],
  control_plane: [7, message(ControlPlane)],
})

/** Messages and enums of envoy.service.discovery.v3. */
export const discovery = {
  DeltaDiscoveryRequest,
  Node,
  Struct,
  Field,
  Value,
  Status,
  DeltaDiscoveryResponse,
  EncodedResponse,
  Resource,
  Any,
  ControlPlane,
} as const

const StatusRequest = table({})
const RelayKind = table({ kind: [1, text], revision: [2, text], changed: [3, text] })
const NodeEntry = table({
  name: [1, text],
  report: [2, text],
  age_ms: [3, int64],
  behind_ms: [4, int64],
  elsewhere: [5, bool],
})
const RelayStatus = table({
  cluster: [1, text],
  up_ms: [2, int64],
  serving: [3, bool],
  knows_nodes: [4, bool],
  kinds: [5, list(message(RelayKind))],
  nodes: [6, list(message(NodeEntry))],
})

/** Messages and enums of kprobe.relay.v1. */
export const status = { StatusRequest, RelayStatus, RelayKind, NodeEntry } as const
