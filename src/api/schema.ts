// Written by `npm run protobuf` from src/api/localv1.proto and src/api/grpc/*.proto; a test compares.
import {
  allEntries,
  bool,
  bytes,
  given,
  int32,
  int64,
  list,
  message,
  table,
  text,
} from '../wire/protobuf/table.ts'

const WatchReq = table({ NodeName: [1, text] })
const EmptyOp = table({})
const Ref = table({ Set: [1, int32], Path: [2, text] })
const Value = table({ Ref: [1, message(Ref)], Bytes: [2, bytes] })
const OpItem = table({
  Sync: [1, message(EmptyOp)],
  Set: [2, message(Value)],
  Delete: [3, message(Ref)],
  Reset: [4, message(EmptyOp)],
})
const IPSet = table({ V4: [1, list(text)], V6: [2, list(text)] })
const ServiceIPs = table({
  ClusterIPs: [1, message(IPSet)],
  ExternalIPs: [2, message(IPSet)],
  Headless: [3, bool],
  LoadBalancerIPs: [4, message(IPSet)],
})
const PortMapping = table({
  Name: [1, text],
  Protocol: [2, int32],
  Port: [3, int32],
  NodePort: [4, int32],
  TargetPort: [5, int32],
  TargetPortName: [6, text],
})
const IPFilter = table({ TargetIPs: [1, message(IPSet)], SourceRanges: [2, list(text)] })
const ClientIPAffinity = table({ TimeoutSeconds: [1, int32] })
const Service = table({
  Namespace: [1, text],
  Name: [2, text],
  Type: [3, text],
  IPs: [4, message(ServiceIPs)],
  MapIP: [5, bool],
  Ports: [6, list(message(PortMapping))],
  ExternalTrafficToLocal: [7, bool],
  Labels: [8, allEntries],
  Annotations: [9, allEntries],
  IPFilters: [10, list(message(IPFilter))],
  ClientIP: [11, message(ClientIPAffinity)],
  InternalTrafficToLocal: [12, bool],
  HealthCheckNodePort: [13, int32],
})
const PortName = table({ Name: [1, text], Port: [2, int32] })
const EndpointScopes = table({ Internal: [1, bool], External: [2, bool] })
const Endpoint = table({
  Hostname: [1, text],
  IPs: [2, message(IPSet)],
  Local: [3, bool],
  PortOverrides: [4, list(message(PortName))],
  Scopes: [5, message(EndpointScopes)],
})

/** Messages and enums of localv1. */
export const localv1 = {
  WatchReq,
  OpItem,
  EmptyOp,
  Value,
  Ref,
  IPSet,
  Service,
  ServiceIPs,
  IPFilter,
  ClientIPAffinity,
  PortMapping,
  Endpoint,
  PortName,
  EndpointScopes,
  Set: { UnknownSet: 0, ServicesSet: 1, EndpointsSet: 2 },
  Protocol: { UnknownProtocol: 0, TCP: 1, UDP: 2, SCTP: 3 },
} as const

const GetRequest = table({})
const GetResponse = table({
  node_name: [1, text],
  number: [2, int64],
  services: [3, int64],
  endpoints: [4, int64],
  since_ms: [5, int64],
  silent_ms: [6, int64],
  source_connected: [7, bool],
  trouble: [8, text],
  streams: [9, int64],
  waiting: [10, int64],
})

/** Messages and enums of kprobe.v1. */
export const status = { GetRequest, GetResponse } as const

const HealthCheckRequest = table({ service: [1, text] })
const HealthCheckResponse = table({ status: [1, int32] })

/** Messages and enums of grpc.health.v1. */
export const health = {
  HealthCheckRequest,
  HealthCheckResponse,
  ServingStatus: { UNKNOWN: 0, SERVING: 1, NOT_SERVING: 2, SERVICE_UNKNOWN: 3 },
} as const

const ExtensionRequest = table({ containing_type: [1, text], extension_number: [2, int32] })
const ServerReflectionRequest = table({
  host: [1, text],
  file_by_filename: [3, given(text)],
  file_containing_symbol: [4, given(text)],
  file_containing_extension: [5, message(ExtensionRequest)],
  all_extension_numbers_of_type: [6, given(text)],
  list_services: [7, given(text)],
})
const FileDescriptorResponse = table({ file_descriptor_proto: [1, list(bytes)] })
const ExtensionNumberResponse = table({ base_type_name: [1, text] })
const ServiceResponse = table({ name: [1, text] })
const ListServiceResponse = table({ service: [1, list(message(ServiceResponse))] })
const ErrorResponse = table({ error_code: [1, int32], error_message: [2, text] })
const ServerReflectionResponse = table({
  valid_host: [1, text],
  original_request: [2, message(ServerReflectionRequest)],
  file_descriptor_response: [4, message(FileDescriptorResponse)],
  all_extension_numbers_response: [5, message(ExtensionNumberResponse)],
  list_services_response: [6, message(ListServiceResponse)],
  error_response: [7, message(ErrorResponse)],
})

/** Messages and enums of grpc.reflection.v1. */
export const reflection = {
  ServerReflectionRequest,
  ExtensionRequest,
  ServerReflectionResponse,
  FileDescriptorResponse,
  ExtensionNumberResponse,
  ListServiceResponse,
  ServiceResponse,
  ErrorResponse,
} as const

/** Descriptors of all files, for reflection: google.protobuf.FileDescriptorProto in base64. */
export const DESCRIPTORS = [
  [
    'ChVsb2NhbHYxL2xvY2FsdjEucHJvdG8SB2xvY2FsdjEiHAoIV2F0Y2hSZXESEAoITm9kZU5hbWUYASABKAkikgEKBk9wSXRlbRIg',
    'CgRTeW5jGAEgASgLMhAubG9jYWx2MS5FbXB0eU9wSAASHQoDU2V0GAIgASgLMg4ubG9jYWx2MS5WYWx1ZUgAEh4KBkRlbGV0ZRgD',
    'IAEoCzIMLmxvY2FsdjEuUmVmSAASIQoFUmVzZXQYBCABKAsyEC5sb2NhbHYxLkVtcHR5T3BIAEIECgJPcCIJCgdFbXB0eU9wIjEK',
    'BVZhbHVlEhkKA1JlZhgBIAEoCzIMLmxvY2FsdjEuUmVmEg0KBUJ5dGVzGAIgASgMIi4KA1JlZhIZCgNTZXQYASABKA4yDC5sb2Nh',
    'bHYxLlNldBIMCgRQYXRoGAIgASgJIh8KBUlQU2V0EgoKAlY0GAEgAygJEgoKAlY2GAIgAygJIocECgdTZXJ2aWNlEhEKCU5hbWVz',
    'cGFjZRgBIAEoCRIMCgROYW1lGAIgASgJEgwKBFR5cGUYAyABKAkSIAoDSVBzGAQgASgLMhMubG9jYWx2MS5TZXJ2aWNlSVBzEg0K',
    'BU1hcElQGAUgASgIEiMKBVBvcnRzGAYgAygLMhQubG9jYWx2MS5Qb3J0TWFwcGluZxIeChZFeHRlcm5hbFRyYWZmaWNUb0xvY2Fs',
    'GAcgASgIEiwKBkxhYmVscxgIIAMoCzIcLmxvY2FsdjEuU2VydmljZS5MYWJlbHNFbnRyeRI2CgtBbm5vdGF0aW9ucxgJIAMoCzIh',
    'LmxvY2FsdjEuU2VydmljZS5Bbm5vdGF0aW9uc0VudHJ5EiQKCUlQRmlsdGVycxgKIAMoCzIRLmxvY2FsdjEuSVBGaWx0ZXISKwoI',
    'Q2xpZW50SVAYCyABKAsyGS5sb2NhbHYxLkNsaWVudElQQWZmaW5pdHkSHgoWSW50ZXJuYWxUcmFmZmljVG9Mb2NhbBgMIAEoCBIb',
    'ChNIZWFsdGhDaGVja05vZGVQb3J0GA0gASgFGi0KC0xhYmVsc0VudHJ5EgsKA2tleRgBIAEoCRINCgV2YWx1ZRgCIAEoCToCOAEa',
    'MgoQQW5ub3RhdGlvbnNFbnRyeRILCgNrZXkYASABKAkSDQoFdmFsdWUYAiABKAk6AjgBIpABCgpTZXJ2aWNlSVBzEiIKCkNsdXN0',
    'ZXJJUHMYASABKAsyDi5sb2NhbHYxLklQU2V0EiMKC0V4dGVybmFsSVBzGAIgASgLMg4ubG9jYWx2MS5JUFNldBIQCghIZWFkbGVz',
    'cxgDIAEoCBInCg9Mb2FkQmFsYW5jZXJJUHMYBCABKAsyDi5sb2NhbHYxLklQU2V0IkMKCElQRmlsdGVyEiEKCVRhcmdldElQcxgB',
    'IAEoCzIOLmxvY2FsdjEuSVBTZXQSFAoMU291cmNlUmFuZ2VzGAIgAygJIioKEENsaWVudElQQWZmaW5pdHkSFgoOVGltZW91dFNl',
    'Y29uZHMYASABKAUijAEKC1BvcnRNYXBwaW5nEgwKBE5hbWUYASABKAkSIwoIUHJvdG9jb2wYAiABKA4yES5sb2NhbHYxLlByb3Rv',
    'Y29sEgwKBFBvcnQYAyABKAUSEAoITm9kZVBvcnQYBCABKAUSEgoKVGFyZ2V0UG9ydBgFIAEoBRIWCg5UYXJnZXRQb3J0TmFtZRgG',
    'IAEoCSKbAQoIRW5kcG9pbnQSEAoISG9zdG5hbWUYASABKAkSGwoDSVBzGAIgASgLMg4ubG9jYWx2MS5JUFNldBINCgVMb2NhbBgD',
    'IAEoCBIoCg1Qb3J0T3ZlcnJpZGVzGAQgAygLMhEubG9jYWx2MS5Qb3J0TmFtZRInCgZTY29wZXMYBSABKAsyFy5sb2NhbHYxLkVu',
    'ZHBvaW50U2NvcGVzIiYKCFBvcnROYW1lEgwKBE5hbWUYASABKAkSDAoEUG9ydBgCIAEoBSI0Cg5FbmRwb2ludFNjb3BlcxIQCghJ',
    'bnRlcm5hbBgBIAEoCBIQCghFeHRlcm5hbBgCIAEoCCo4CgNTZXQSDgoKVW5rbm93blNldBAAEg8KC1NlcnZpY2VzU2V0EAESEAoM',
    'RW5kcG9pbnRzU2V0EAIqOwoIUHJvdG9jb2wSEwoPVW5rbm93blByb3RvY29sEAASBwoDVENQEAESBwoDVURQEAISCAoEU0NUUBAD',
    'MjcKBFNldHMSLwoFV2F0Y2gSES5sb2NhbHYxLldhdGNoUmVxGg8ubG9jYWx2MS5PcEl0ZW0oATABYgZwcm90bzM=',
  ].join(''),
  [
    'ChZrcHJvYmUvdjEvc3RhdHVzLnByb3RvEglrcHJvYmUudjEiDAoKR2V0UmVxdWVzdCLHAQoLR2V0UmVzcG9uc2USEQoJbm9kZV9u',
    'YW1lGAEgASgJEg4KBm51bWJlchgCIAEoBBIQCghzZXJ2aWNlcxgDIAEoBBIRCgllbmRwb2ludHMYBCABKAQSEAoIc2luY2VfbXMY',
    'BSABKAQSEQoJc2lsZW50X21zGAYgASgEEhgKEHNvdXJjZV9jb25uZWN0ZWQYByABKAgSDwoHdHJvdWJsZRgIIAEoCRIPCgdzdHJl',
    'YW1zGAkgASgEEg8KB3dhaXRpbmcYCiABKAQyPgoGU3RhdHVzEjQKA0dldBIVLmtwcm9iZS52MS5HZXRSZXF1ZXN0GhYua3Byb2Jl',
    'LnYxLkdldFJlc3BvbnNlYgZwcm90bzM=',
  ].join(''),
  [
    'ChtncnBjL2hlYWx0aC92MS9oZWFsdGgucHJvdG8SDmdycGMuaGVhbHRoLnYxIiUKEkhlYWx0aENoZWNrUmVxdWVzdBIPCgdzZXJ2',
    'aWNlGAEgASgJIkQKE0hlYWx0aENoZWNrUmVzcG9uc2USLQoGc3RhdHVzGAEgASgOMh0uZ3JwYy5oZWFsdGgudjEuU2VydmluZ1N0',
    'YXR1cypPCg1TZXJ2aW5nU3RhdHVzEgsKB1VOS05PV04QABILCgdTRVJWSU5HEAESDwoLTk9UX1NFUlZJTkcQAhITCg9TRVJWSUNF',
    'X1VOS05PV04QAzKuAQoGSGVhbHRoElAKBUNoZWNrEiIuZ3JwYy5oZWFsdGgudjEuSGVhbHRoQ2hlY2tSZXF1ZXN0GiMuZ3JwYy5o',
    'ZWFsdGgudjEuSGVhbHRoQ2hlY2tSZXNwb25zZRJSCgVXYXRjaBIiLmdycGMuaGVhbHRoLnYxLkhlYWx0aENoZWNrUmVxdWVzdBoj',
    'LmdycGMuaGVhbHRoLnYxLkhlYWx0aENoZWNrUmVzcG9uc2UwAWIGcHJvdG8z',
  ].join(''),
  [
    'CiNncnBjL3JlZmxlY3Rpb24vdjEvcmVmbGVjdGlvbi5wcm90bxISZ3JwYy5yZWZsZWN0aW9uLnYxIoUCChdTZXJ2ZXJSZWZsZWN0',
    'aW9uUmVxdWVzdBIMCgRob3N0GAEgASgJEhoKEGZpbGVfYnlfZmlsZW5hbWUYAyABKAlIABIgChZmaWxlX2NvbnRhaW5pbmdfc3lt',
    'Ym9sGAQgASgJSAASSQoZZmlsZV9jb250YWluaW5nX2V4dGVuc2lvbhgFIAEoCzIkLmdycGMucmVmbGVjdGlvbi52MS5FeHRlbnNp',
    'b25SZXF1ZXN0SAASJwodYWxsX2V4dGVuc2lvbl9udW1iZXJzX29mX3R5cGUYBiABKAlIABIXCg1saXN0X3NlcnZpY2VzGAcgASgJ',
    'SABCEQoPbWVzc2FnZV9yZXF1ZXN0IkUKEEV4dGVuc2lvblJlcXVlc3QSFwoPY29udGFpbmluZ190eXBlGAEgASgJEhgKEGV4dGVu',
    'c2lvbl9udW1iZXIYAiABKAUiuAMKGFNlcnZlclJlZmxlY3Rpb25SZXNwb25zZRISCgp2YWxpZF9ob3N0GAEgASgJEkUKEG9yaWdp',
    'bmFsX3JlcXVlc3QYAiABKAsyKy5ncnBjLnJlZmxlY3Rpb24udjEuU2VydmVyUmVmbGVjdGlvblJlcXVlc3QSTgoYZmlsZV9kZXNj',
    'cmlwdG9yX3Jlc3BvbnNlGAQgASgLMiouZ3JwYy5yZWZsZWN0aW9uLnYxLkZpbGVEZXNjcmlwdG9yUmVzcG9uc2VIABJVCh5hbGxf',
    'ZXh0ZW5zaW9uX251bWJlcnNfcmVzcG9uc2UYBSABKAsyKy5ncnBjLnJlZmxlY3Rpb24udjEuRXh0ZW5zaW9uTnVtYmVyUmVzcG9u',
    'c2VIABJJChZsaXN0X3NlcnZpY2VzX3Jlc3BvbnNlGAYgASgLMicuZ3JwYy5yZWZsZWN0aW9uLnYxLkxpc3RTZXJ2aWNlUmVzcG9u',
    'c2VIABI7Cg5lcnJvcl9yZXNwb25zZRgHIAEoCzIhLmdycGMucmVmbGVjdGlvbi52MS5FcnJvclJlc3BvbnNlSABCEgoQbWVzc2Fn',
    'ZV9yZXNwb25zZSI3ChZGaWxlRGVzY3JpcHRvclJlc3BvbnNlEh0KFWZpbGVfZGVzY3JpcHRvcl9wcm90bxgBIAMoDCJLChdFeHRl',
    'bnNpb25OdW1iZXJSZXNwb25zZRIWCg5iYXNlX3R5cGVfbmFtZRgBIAEoCRIYChBleHRlbnNpb25fbnVtYmVyGAIgAygFIksKE0xp',
    'c3RTZXJ2aWNlUmVzcG9uc2USNAoHc2VydmljZRgBIAMoCzIjLmdycGMucmVmbGVjdGlvbi52MS5TZXJ2aWNlUmVzcG9uc2UiHwoP',
    'U2VydmljZVJlc3BvbnNlEgwKBG5hbWUYASABKAkiOgoNRXJyb3JSZXNwb25zZRISCgplcnJvcl9jb2RlGAEgASgFEhUKDWVycm9y',
    'X21lc3NhZ2UYAiABKAkyiQEKEFNlcnZlclJlZmxlY3Rpb24SdQoUU2VydmVyUmVmbGVjdGlvbkluZm8SKy5ncnBjLnJlZmxlY3Rp',
    'b24udjEuU2VydmVyUmVmbGVjdGlvblJlcXVlc3QaLC5ncnBjLnJlZmxlY3Rpb24udjEuU2VydmVyUmVmbGVjdGlvblJlc3BvbnNl',
    'KAEwAWIGcHJvdG8z',
  ].join(''),
  [
    'CihncnBjL3JlZmxlY3Rpb24vdjFhbHBoYS9yZWZsZWN0aW9uLnByb3RvEhdncnBjLnJlZmxlY3Rpb24udjFhbHBoYSKKAgoXU2Vy',
    'dmVyUmVmbGVjdGlvblJlcXVlc3QSDAoEaG9zdBgBIAEoCRIaChBmaWxlX2J5X2ZpbGVuYW1lGAMgASgJSAASIAoWZmlsZV9jb250',
    'YWluaW5nX3N5bWJvbBgEIAEoCUgAEk4KGWZpbGVfY29udGFpbmluZ19leHRlbnNpb24YBSABKAsyKS5ncnBjLnJlZmxlY3Rpb24u',
    'djFhbHBoYS5FeHRlbnNpb25SZXF1ZXN0SAASJwodYWxsX2V4dGVuc2lvbl9udW1iZXJzX29mX3R5cGUYBiABKAlIABIXCg1saXN0',
    'X3NlcnZpY2VzGAcgASgJSABCEQoPbWVzc2FnZV9yZXF1ZXN0IkUKEEV4dGVuc2lvblJlcXVlc3QSFwoPY29udGFpbmluZ190eXBl',
    'GAEgASgJEhgKEGV4dGVuc2lvbl9udW1iZXIYAiABKAUi0QMKGFNlcnZlclJlZmxlY3Rpb25SZXNwb25zZRISCgp2YWxpZF9ob3N0',
    'GAEgASgJEkoKEG9yaWdpbmFsX3JlcXVlc3QYAiABKAsyMC5ncnBjLnJlZmxlY3Rpb24udjFhbHBoYS5TZXJ2ZXJSZWZsZWN0aW9u',
    'UmVxdWVzdBJTChhmaWxlX2Rlc2NyaXB0b3JfcmVzcG9uc2UYBCABKAsyLy5ncnBjLnJlZmxlY3Rpb24udjFhbHBoYS5GaWxlRGVz',
    'Y3JpcHRvclJlc3BvbnNlSAASWgoeYWxsX2V4dGVuc2lvbl9udW1iZXJzX3Jlc3BvbnNlGAUgASgLMjAuZ3JwYy5yZWZsZWN0aW9u',
    'LnYxYWxwaGEuRXh0ZW5zaW9uTnVtYmVyUmVzcG9uc2VIABJOChZsaXN0X3NlcnZpY2VzX3Jlc3BvbnNlGAYgASgLMiwuZ3JwYy5y',
    'ZWZsZWN0aW9uLnYxYWxwaGEuTGlzdFNlcnZpY2VSZXNwb25zZUgAEkAKDmVycm9yX3Jlc3BvbnNlGAcgASgLMiYuZ3JwYy5yZWZs',
    'ZWN0aW9uLnYxYWxwaGEuRXJyb3JSZXNwb25zZUgAQhIKEG1lc3NhZ2VfcmVzcG9uc2UiNwoWRmlsZURlc2NyaXB0b3JSZXNwb25z',
    'ZRIdChVmaWxlX2Rlc2NyaXB0b3JfcHJvdG8YASADKAwiSwoXRXh0ZW5zaW9uTnVtYmVyUmVzcG9uc2USFgoOYmFzZV90eXBlX25h',
    'bWUYASABKAkSGAoQZXh0ZW5zaW9uX251bWJlchgCIAMoBSJQChNMaXN0U2VydmljZVJlc3BvbnNlEjkKB3NlcnZpY2UYASADKAsy',
    'KC5ncnBjLnJlZmxlY3Rpb24udjFhbHBoYS5TZXJ2aWNlUmVzcG9uc2UiHwoPU2VydmljZVJlc3BvbnNlEgwKBG5hbWUYASABKAki',
    'OgoNRXJyb3JSZXNwb25zZRISCgplcnJvcl9jb2RlGAEgASgFEhUKDWVycm9yX21lc3NhZ2UYAiABKAkykwEKEFNlcnZlclJlZmxl',
    'Y3Rpb24SfwoUU2VydmVyUmVmbGVjdGlvbkluZm8SMC5ncnBjLnJlZmxlY3Rpb24udjFhbHBoYS5TZXJ2ZXJSZWZsZWN0aW9uUmVx',
    'dWVzdBoxLmdycGMucmVmbGVjdGlvbi52MWFscGhhLlNlcnZlclJlZmxlY3Rpb25SZXNwb25zZSgBMAFiBnByb3RvMw==',
  ].join(''),
] as const
