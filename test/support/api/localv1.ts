import protobuf from 'protobufjs'

/** KPNG's interface, written down a second time, for an implementation of protobuf that is not ours. */
const LOCALV1 = `
syntax = "proto3";
package localv1;
service Sets { rpc Watch (stream WatchReq) returns (stream OpItem); }
message WatchReq { string NodeName = 1; }
message OpItem { oneof Op { EmptyOp Sync = 1; Value Set = 2; Ref Delete = 3; EmptyOp Reset = 4; } }
message EmptyOp {}
message Value { Ref Ref = 1; bytes Bytes = 2; }
message Ref { Set Set = 1; string Path = 2; }
enum Set { UnknownSet = 0; ServicesSet = 1; EndpointsSet = 2; }
message IPSet { repeated string V4 = 1; repeated string V6 = 2; }
message ServiceIPs { IPSet ClusterIPs = 1; IPSet ExternalIPs = 2; bool Headless = 3; IPSet LoadBalancerIPs = 4; }
message IPFilter { IPSet TargetIPs = 1; repeated string SourceRanges = 2; }
message ClientIPAffinity { int32 TimeoutSeconds = 1; }
enum Protocol { UnknownProtocol = 0; TCP = 1; UDP = 2; SCTP = 3; }
message PortMapping {
  string Name = 1; Protocol Protocol = 2; int32 Port = 3; int32 NodePort = 4; int32 TargetPort = 5; string TargetPortName = 6;
}
message Service {
  string Namespace = 1; string Name = 2; string Type = 3; ServiceIPs IPs = 4; bool MapIP = 5;
  repeated PortMapping Ports = 6; bool ExternalTrafficToLocal = 7; map<string, string> Labels = 8;
  map<string, string> Annotations = 9; repeated IPFilter IPFilters = 10; ClientIPAffinity ClientIP = 11;
  bool InternalTrafficToLocal = 12; int32 HealthCheckNodePort = 13;
}
message PortName { string Name = 1; int32 Port = 2; }
message EndpointScopes { bool Internal = 1; bool External = 2; }
message Endpoint { string Hostname = 1; IPSet IPs = 2; bool Local = 3; repeated PortName PortOverrides = 4; EndpointScopes Scopes = 5; }
`

const root = protobuf.parse(LOCALV1, { keepCase: true }).root

export function encodeLocalv1(type: string, value: object): Buffer {
  const its = root.lookupType(`localv1.${type}`)
  const wrong = its.verify(value)
  if (wrong !== null) throw new Error(`${type}: ${wrong}`)
  return Buffer.from(its.encode(its.create(value)).finish())
}

export interface ReceivedItem {
  readonly Op: 'Sync' | 'Set' | 'Delete' | 'Reset'
  readonly Set?: { readonly Ref: ReceivedRef; readonly Bytes: Buffer }
  readonly Delete?: ReceivedRef
}

export interface ReceivedRef {
  readonly Set: number
  readonly Path: string
}

export function decodeOpItem(bytes: Uint8Array): ReceivedItem {
  const its = root.lookupType('localv1.OpItem')
  const item: unknown = its.toObject(its.decode(bytes), { oneofs: true, defaults: false })
  if (!isItem(item)) throw new Error('an OpItem without an operation')
  return item
}

function isItem(value: unknown): value is ReceivedItem {
  return typeof value === 'object' && value !== null && 'Op' in value
}

/** The definitions as they are, to compare with what reflection tells. */
export const LOCALV1_ROOT = root
