import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import protobuf from 'protobufjs'
import { expect, it } from 'vitest'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const DEPS = `${ROOT}node_modules/@grpc/grpc-js-xds/deps`
const FOLDERS = ['envoy-api', 'googleapis', 'protoc-gen-validate', 'xds'].map(name => `${DEPS}/${name}`)

/** Our messages by those that clients of other makers have. Fields of Struct are a map, which is a list of entries. */
const THEIRS: Readonly<Record<string, string>> = {
  DeltaDiscoveryRequest: 'envoy.service.discovery.v3.DeltaDiscoveryRequest',
  DeltaDiscoveryResponse: 'envoy.service.discovery.v3.DeltaDiscoveryResponse',
  EncodedResponse: 'envoy.service.discovery.v3.DeltaDiscoveryResponse',
  Resource: 'envoy.service.discovery.v3.Resource',
  Node: 'envoy.config.core.v3.Node',
  ControlPlane: 'envoy.config.core.v3.ControlPlane',
  Status: 'google.rpc.Status',
  Any: 'google.protobuf.Any',
  Struct: 'google.protobuf.Struct',
  Value: 'google.protobuf.Value',
}

function envoy(): protobuf.Namespace {
  const root = new protobuf.Root()
  root.resolvePath = (_, target) =>
    [...FOLDERS, `${ROOT}node_modules/protobufjs`]
      .map(folder => `${folder}/${target}`)
      .find(path => existsSync(path)) ?? target
  return root.loadSync('envoy/service/discovery/v3/discovery.proto', { keepCase: true }).resolveAll()
}

/** The number and the wire form of a field: two forms of one number are not the same to a reader. */
function formOf(field: protobuf.Field | undefined): string {
  if (field === undefined) return 'missing'
  const isScalar = field.resolvedType === null
  const isBytes = !isScalar || ['string', 'bytes'].includes(field.type)
  const isOpen = field instanceof protobuf.MapField || field.repeated
  return `${field.id}: ${isOpen ? 'repeated ' : ''}${isBytes ? 'bytes' : field.type}`
}

it("gives every field of discovery.proto the number and the form of Envoy's own", () => {
  const own = protobuf.parse(readFileSync(`${ROOT}src/relay/discovery.proto`, 'utf8'), {
    keepCase: true,
  }).root
  const ours = own.resolveAll().lookup('envoy.service.discovery.v3')
  const theirs = envoy()
  const messages = (ours instanceof protobuf.Namespace ? ours.nestedArray : []).filter(
    each => each instanceof protobuf.Type,
  )
  // protobufjs has the messages of google.protobuf in itself, with names in its own style.
  // An entry of a map has no message of its own: its fields are key = 1 and value = 2, by the language.
  expect(messages.map(({ name }) => name).sort()).toEqual([...Object.keys(THEIRS), 'Field'].sort())
  for (const message of messages) {
    const name = THEIRS[message.name]
    if (name === undefined) continue
    const their = theirs.lookupType(name).fields
    for (const field of message.fieldsArray)
      expect([message.name, field.name, formOf(field)]).toEqual([
        message.name,
        field.name,
        formOf(their[field.name] ?? their[protobuf.util.camelCase(field.name)]),
      ])
  }
})
