import { bytesField, messageField, numberField } from './protobuf.ts'

/** A file of definitions; messages of one file refer to each other by their names there. */
interface DefinitionFile {
  readonly name: string
  readonly package: string
  readonly messages: Readonly<Record<string, Fields>>
  readonly enums?: Readonly<Record<string, Readonly<Record<string, number>>>>
  readonly services: Readonly<Record<string, Readonly<Record<string, Rpc>>>>
}

/** Fields by name: number, type as proto3 writes it, and the oneof that it belongs to. */
type Fields = Readonly<Record<string, readonly [number: number, type: string, oneof?: string]>>

interface Rpc {
  readonly takes: string
  readonly gives: string
  readonly streams?: 'answers' | 'both'
}

const IP_SETS: Readonly<Record<string, Fields>> = {
  IPSet: { V4: [1, 'repeated string'], V6: [2, 'repeated string'] },
  ServiceIPs: {
    ClusterIPs: [1, 'IPSet'],
    ExternalIPs: [2, 'IPSet'],
    Headless: [3, 'bool'],
    LoadBalancerIPs: [4, 'IPSet'],
  },
  IPFilter: { TargetIPs: [1, 'IPSet'], SourceRanges: [2, 'repeated string'] },
}

/** KPNG's interface (sigs.k8s.io/kpng/api/localv1). */
const LOCALV1: DefinitionFile = {
  name: 'localv1/localv1.proto',
  package: 'localv1',
  enums: {
    Set: { UnknownSet: 0, ServicesSet: 1, EndpointsSet: 2 },
    Protocol: { UnknownProtocol: 0, TCP: 1, UDP: 2, SCTP: 3 },
  },
  messages: {
    WatchReq: { NodeName: [1, 'string'] },
    OpItem: {
      Sync: [1, 'EmptyOp', 'Op'],
      Set: [2, 'Value', 'Op'],
      Delete: [3, 'Ref', 'Op'],
      Reset: [4, 'EmptyOp', 'Op'],
    },
    EmptyOp: {},
    Value: { Ref: [1, 'Ref'], Bytes: [2, 'bytes'] },
    Ref: { Set: [1, 'Set'], Path: [2, 'string'] },
    Service: {
      Namespace: [1, 'string'],
      Name: [2, 'string'],
      Type: [3, 'string'],
      IPs: [4, 'ServiceIPs'],
      MapIP: [5, 'bool'],
      Ports: [6, 'repeated PortMapping'],
      ExternalTrafficToLocal: [7, 'bool'],
      Labels: [8, 'map'],
      Annotations: [9, 'map'],
      IPFilters: [10, 'repeated IPFilter'],
      ClientIP: [11, 'ClientIPAffinity'],
      InternalTrafficToLocal: [12, 'bool'],
      HealthCheckNodePort: [13, 'int32'],
    },
    ...IP_SETS,
    PortMapping: {
      Name: [1, 'string'],
      Protocol: [2, 'Protocol'],
      Port: [3, 'int32'],
      NodePort: [4, 'int32'],
      TargetPort: [5, 'int32'],
      TargetPortName: [6, 'string'],
    },
    ClientIPAffinity: { TimeoutSeconds: [1, 'int32'] },
    Endpoint: {
      Hostname: [1, 'string'],
      IPs: [2, 'IPSet'],
      Local: [3, 'bool'],
      PortOverrides: [4, 'repeated PortName'],
      Scopes: [5, 'EndpointScopes'],
    },
    PortName: { Name: [1, 'string'], Port: [2, 'int32'] },
    EndpointScopes: { Internal: [1, 'bool'], External: [2, 'bool'] },
  },
  services: { Sets: { Watch: { takes: 'WatchReq', gives: 'OpItem', streams: 'both' } } },
}

const STATUS: DefinitionFile = {
  name: 'kprobe/v1/status.proto',
  package: 'kprobe.v1',
  messages: {
    GetRequest: {},
    GetResponse: {
      node_name: [1, 'string'],
      number: [2, 'uint64'],
      services: [3, 'uint64'],
      endpoints: [4, 'uint64'],
      since_ms: [5, 'uint64'],
      silent_ms: [6, 'uint64'],
      source_connected: [7, 'bool'],
      trouble: [8, 'string'],
      streams: [9, 'uint64'],
      waiting: [10, 'uint64'],
    },
  },
  services: { Status: { Get: { takes: 'GetRequest', gives: 'GetResponse' } } },
}

const HEALTH: DefinitionFile = {
  name: 'grpc/health/v1/health.proto',
  package: 'grpc.health.v1',
  enums: { ServingStatus: { UNKNOWN: 0, SERVING: 1, NOT_SERVING: 2, SERVICE_UNKNOWN: 3 } },
  messages: {
    HealthCheckRequest: { service: [1, 'string'] },
    HealthCheckResponse: { status: [1, 'ServingStatus'] },
  },
  services: {
    Health: {
      Check: { takes: 'HealthCheckRequest', gives: 'HealthCheckResponse' },
      Watch: { takes: 'HealthCheckRequest', gives: 'HealthCheckResponse', streams: 'answers' },
    },
  },
}

function reflection(version: string): DefinitionFile {
  const [asked, answered] = ['message_request', 'message_response'] as const
  return {
    name: `grpc/reflection/${version}/reflection.proto`,
    package: `grpc.reflection.${version}`,
    messages: {
      ServerReflectionRequest: {
        host: [1, 'string'],
        file_by_filename: [3, 'string', asked],
        file_containing_symbol: [4, 'string', asked],
        file_containing_extension: [5, 'ExtensionRequest', asked],
        all_extension_numbers_of_type: [6, 'string', asked],
        list_services: [7, 'string', asked],
      },
      ExtensionRequest: { containing_type: [1, 'string'], extension_number: [2, 'int32'] },
      ServerReflectionResponse: {
        valid_host: [1, 'string'],
        original_request: [2, 'ServerReflectionRequest'],
        file_descriptor_response: [4, 'FileDescriptorResponse', answered],
        all_extension_numbers_response: [5, 'ExtensionNumberResponse', answered],
        list_services_response: [6, 'ListServiceResponse', answered],
        error_response: [7, 'ErrorResponse', answered],
      },
      FileDescriptorResponse: { file_descriptor_proto: [1, 'repeated bytes'] },
      ExtensionNumberResponse: {
        base_type_name: [1, 'string'],
        extension_number: [2, 'repeated int32'],
      },
      ListServiceResponse: { service: [1, 'repeated ServiceResponse'] },
      ServiceResponse: { name: [1, 'string'] },
      ErrorResponse: { error_code: [1, 'int32'], error_message: [2, 'string'] },
    },
    services: {
      ServerReflection: {
        ServerReflectionInfo: {
          takes: 'ServerReflectionRequest',
          gives: 'ServerReflectionResponse',
          streams: 'both',
        },
      },
    },
  }
}

const FILES: readonly DefinitionFile[] = [LOCALV1, STATUS, HEALTH, reflection('v1'), reflection('v1alpha')]

/** What reflection publishes. */
export interface Definitions {
  /** Full names: `localv1.Sets`. */
  readonly services: readonly string[]
  /** Encoded google.protobuf.FileDescriptorProto. */
  readonly byFileName: ReadonlyMap<string, Buffer>
  /** Files by the full names of their messages, enums, services and methods, without a leading dot. */
  readonly bySymbol: ReadonlyMap<string, Buffer>
}

export function definitions(): Definitions {
  const services: string[] = []
  const byFileName = new Map<string, Buffer>()
  const bySymbol = new Map<string, Buffer>()
  for (const file of FILES) {
    const encoded = encodeFile(file)
    byFileName.set(file.name, encoded)
    for (const name of [...Object.keys(file.messages), ...Object.keys(file.enums ?? {})])
      bySymbol.set(`${file.package}.${name}`, encoded)
    for (const [name, methods] of Object.entries(file.services)) {
      const service = `${file.package}.${name}`
      services.push(service)
      bySymbol.set(service, encoded)
      for (const method of Object.keys(methods)) bySymbol.set(`${service}.${method}`, encoded)
    }
  }
  return { services, byFileName, bySymbol }
}

/* Numbers of fields in what follows are those of google/protobuf/descriptor.proto. */

const TYPES: Readonly<Record<string, number>> = { uint64: 4, int32: 5, bool: 8, string: 9, bytes: 12 }
const TYPE_MESSAGE = 11
const TYPE_ENUM = 14
const LABEL_OPTIONAL = 1
const LABEL_REPEATED = 3

function encodeFile(file: DefinitionFile): Buffer {
  return Buffer.concat([
    bytesField(1, file.name),
    bytesField(2, file.package),
    ...Object.entries(file.messages).map(([name, fields]) => messageField(4, message(file, name, fields))),
    ...Object.entries(file.enums ?? {}).map(([name, values]) => messageField(5, enumeration(name, values))),
    ...Object.entries(file.services).map(([name, methods]) => messageField(6, service(file, name, methods))),
    bytesField(12, 'proto3'),
  ])
}

function message(file: DefinitionFile, name: string, fields: Fields): Buffer[] {
  const oneofs = [...new Set(Object.values(fields).flatMap(([, , oneof]) => oneof ?? []))]
  const maps = Object.entries(fields).filter(([, [, type]]) => type === 'map')
  return [
    bytesField(1, name),
    ...Object.entries(fields).map(([field, [number, type, oneof]]) =>
      messageField(2, [
        bytesField(1, field),
        numberField(3, number),
        ...typeOf(file, type === 'map' ? `repeated ${name}.${entryOf(field)}` : type),
        ...(oneof === undefined ? [] : [indexField(9, oneofs.indexOf(oneof))]),
      ]),
    ),
    ...maps.map(([field]) => messageField(3, mapEntry(file, field))),
    ...oneofs.map(oneof => messageField(8, [bytesField(1, oneof)])),
  ]
}

function mapEntry(file: DefinitionFile, field: string): Buffer[] {
  const isMapEntry = numberField(7, 1)
  return [
    ...message(file, entryOf(field), { key: [1, 'string'], value: [2, 'string'] }),
    messageField(7, [isMapEntry]),
  ]
}

function entryOf(field: string): string {
  return `${field}Entry`
}

function typeOf(file: DefinitionFile, written: string): Buffer[] {
  const isRepeated = written.startsWith('repeated ')
  const name = isRepeated ? written.slice('repeated '.length) : written
  const label = numberField(4, isRepeated ? LABEL_REPEATED : LABEL_OPTIONAL)
  const plain = TYPES[name]
  if (plain !== undefined) return [label, numberField(5, plain)]
  const type = file.enums?.[name] === undefined ? TYPE_MESSAGE : TYPE_ENUM
  return [label, numberField(5, type), bytesField(6, `.${file.package}.${name}`)]
}

function enumeration(name: string, values: Readonly<Record<string, number>>): Buffer[] {
  return [
    bytesField(1, name),
    ...Object.entries(values).map(([value, number]) =>
      messageField(2, [bytesField(1, value), indexField(2, number)]),
    ),
  ]
}

function service(file: DefinitionFile, name: string, methods: Readonly<Record<string, Rpc>>): Buffer[] {
  return [
    bytesField(1, name),
    ...Object.entries(methods).map(([method, { takes, gives, streams }]) =>
      messageField(2, [
        bytesField(1, method),
        bytesField(2, `.${file.package}.${takes}`),
        bytesField(3, `.${file.package}.${gives}`),
        numberField(5, streams === 'both' ? 1 : 0),
        numberField(6, streams === undefined ? 0 : 1),
      ]),
    ),
  ]
}

/** Descriptors are proto2: there, a 0 that is left out is not there. */
function indexField(number: number, value: number): Buffer {
  return value === 0 ? Buffer.from([number * 8, 0]) : numberField(number, value)
}
