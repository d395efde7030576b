// Writes src/api/schema.ts and src/relay/schema.ts, or the files of the two arguments, from their definitions: tables of the
// messages, and for the API the descriptors that reflection publishes.
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { basename } from 'node:path'
import { argv } from 'node:process'
import { fileURLToPath } from 'node:url'
import protobuf from 'protobufjs'
import descriptor from 'protobufjs/ext/descriptor/index.js'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const REFLECTION = 'src/api/grpc/reflection.proto'
const SOURCES = [
  'src/api/localv1.proto',
  'src/api/grpc/status.proto',
  'src/api/grpc/health.proto',
  REFLECTION,
]
const RELAY_SOURCES = ['src/relay/discovery.proto', 'src/relay/status.proto']
const SHAPES = ['allEntries', 'bool', 'bytes', 'given', 'int32', 'int64', 'list', 'message', 'table', 'text']

/** Shapes of src/wire/protobuf/table.ts, and numbers of FieldDescriptorProto.Type. */
const SCALARS = {
  uint64: ['int64', 4],
  int32: ['int32', 5],
  bool: ['bool', 8],
  string: ['text', 9],
  bytes: ['bytes', 12],
}
const TYPE_MESSAGE = 11
const TYPE_ENUM = 14
const LABEL_OPTIONAL = 1
const LABEL_REPEATED = 3

function parse(path, text = readFileSync(`${ROOT}${path}`, 'utf8')) {
  const { root, package: scope } = protobuf.parse(text, { keepCase: true })
  root.resolveAll()
  const kinds = [protobuf.Type, protobuf.Enum, protobuf.Service]
  const [messages, enums, services] = kinds.map(kind =>
    root.lookup(scope).nestedArray.filter(each => each instanceof kind),
  )
  const name = basename(path, '.proto')
  return { scope, name, path: `${scope.replaceAll('.', '/')}/${name}.proto`, messages, enums, services }
}

/* Tables */

/** Messages behind those that they refer to. Names are unique in all files. */
function tablesOf({ messages }) {
  const done = new Set()
  const texts = []
  const add = (type, outer) => {
    if (outer.includes(type)) throw new Error(`${type.fullName} refers to itself`)
    if (done.has(type)) return
    for (const { resolvedType } of type.fieldsArray)
      if (resolvedType instanceof protobuf.Type) add(resolvedType, [...outer, type])
    done.add(type)
    const fields = type.fieldsArray.flatMap(field =>
      shapeOf(field).map(shape => `${field.name}: [${field.id}, ${shape}]`),
    )
    texts.push(`const ${type.name} = table({ ${fields.join(', ')} })`)
  }
  for (const type of messages) add(type, [])
  return texts
}

/** None for lists of numbers, which the codec has no shape for, and the server neither reads nor writes. */
function shapeOf({ map, repeated, resolvedType, type, keyType, partOf, fullName }) {
  if (map && `${keyType} ${type}` === 'string string') return ['allEntries']
  if (map) throw new Error(`${fullName}: only maps from strings to strings have a shape`)
  const shape = elementShape(resolvedType, type)
  if (repeated) return ['bool', 'int32', 'int64'].includes(shape) ? [] : [`list(${shape})`]
  return [partOf && !(resolvedType instanceof protobuf.Type) ? `given(${shape})` : shape]
}

function elementShape(resolvedType, type) {
  if (resolvedType instanceof protobuf.Type) return `message(${resolvedType.name})`
  if (resolvedType instanceof protobuf.Enum) return 'int32'
  const [shape] = SCALARS[type] ?? []
  if (shape === undefined) throw new Error(`no shape for ${type}`)
  return shape
}

function exportOf({ name, scope, messages, enums }) {
  const members = [
    ...messages.map(type => type.name),
    ...enums.map(({ name, values }) => `${name}: ${JSON.stringify(values)}`),
  ]
  return `/** Messages and enums of ${scope}. */\nexport const ${name} = { ${members.join(', ')} } as const`
}

/* Descriptors: google/protobuf/descriptor.proto */

function descriptorOf({ path, scope, messages, enums, services }) {
  const file = {
    name: path,
    package: scope,
    messageType: messages.map(messageDescriptor),
    enumType: enums.map(({ name, values }) => ({
      name,
      value: Object.entries(values).map(([name, number]) => ({ name, number })),
    })),
    service: services.map(({ name, methodsArray }) => ({ name, method: methodsArray.map(methodDescriptor) })),
    syntax: 'proto3',
  }
  const { FileDescriptorProto } = descriptor
  return Buffer.from(FileDescriptorProto.encode(FileDescriptorProto.fromObject(file)).finish()).toString(
    'base64',
  )
}

function messageDescriptor({ name, fullName, fieldsArray, oneofsArray }) {
  return {
    name,
    field: fieldsArray.map(field => ({
      name: field.name,
      number: field.id,
      label: field.repeated || field.map ? LABEL_REPEATED : LABEL_OPTIONAL,
      ...(field.map
        ? { type: TYPE_MESSAGE, typeName: `${fullName}.${field.name}Entry` }
        : typeDescriptor(field)),
      ...(field.partOf ? { oneofIndex: oneofsArray.indexOf(field.partOf) } : {}),
    })),
    nestedType: fieldsArray.filter(({ map }) => map).map(entryDescriptor),
    oneofDecl: oneofsArray.map(({ name }) => ({ name })),
  }
}

function typeDescriptor({ resolvedType, type }) {
  if (resolvedType === null) return { type: SCALARS[type][1] }
  return {
    type: resolvedType instanceof protobuf.Enum ? TYPE_ENUM : TYPE_MESSAGE,
    typeName: resolvedType.fullName,
  }
}

function entryDescriptor({ name }) {
  const field = (name, number) => ({ name, number, label: LABEL_OPTIONAL, type: SCALARS.string[1] })
  return { name: `${name}Entry`, field: [field('key', 1), field('value', 2)], options: { mapEntry: true } }
}

function methodDescriptor({ name, parent, requestType, responseType, requestStream, responseStream }) {
  return {
    name,
    inputType: parent.lookupType(requestType).fullName,
    outputType: parent.lookupType(responseType).fullName,
    ...(requestStream ? { clientStreaming: true } : {}),
    ...(responseStream ? { serverStreaming: true } : {}),
  }
}

/* The file */

const LINE = 100

/** A long text in lines, joined. */
function wrapped(text) {
  const lines = text.match(new RegExp(`.{1,${LINE}}`, 'g')) ?? []
  return `[${lines.map(line => `'${line}'`).join(',\n')}].join('')`
}

function apiSchema() {
  const sources = SOURCES.map(path => parse(path))
  const alpha = readFileSync(`${ROOT}${REFLECTION}`, 'utf8').replace(/^package .*\.v1;$/m, line =>
    line.replace('v1', 'v1alpha'),
  )
  const files = [...sources, parse(REFLECTION, alpha)].map(descriptorOf)
  return [
    '// Written by `npm run protobuf` from src/api/localv1.proto and src/api/grpc/*.proto; a test compares.',
    importOf(SHAPES),
    ...sources.flatMap(source => ['', ...tablesOf(source), '', exportOf(source)]),
    '',
    '/** Descriptors of all files, for reflection: google.protobuf.FileDescriptorProto in base64. */',
    `export const DESCRIPTORS = [${files.map(wrapped).join(', ')}] as const`,
    '',
  ].join('\n')
}

function relaySchema() {
  const sources = RELAY_SOURCES.map(path => parse(path))
  const texts = sources.flatMap(source => [...tablesOf(source), '', exportOf(source), ''])
  const used = SHAPES.filter(shape => texts.some(text => new RegExp(`\\b${shape}\\b[,(\\]]`).test(text)))
  const header = '// Written by `npm run protobuf` from src/relay/*.proto; a test compares.'
  return [header, importOf(used), '', ...texts].join('\n')
}

function importOf(shapes) {
  return `import { ${shapes.join(', ')} } from '../wire/protobuf/table.ts'`
}

function formatted(input) {
  const biome = [
    `${ROOT}node_modules/@biomejs/biome/bin/biome`,
    'format',
    '--stdin-file-path=src/api/schema.ts',
  ]
  return execFileSync(process.execPath, biome, { cwd: ROOT, input, encoding: 'utf8' })
}

writeFileSync(argv[2] ?? `${ROOT}src/api/schema.ts`, formatted(apiSchema()))
writeFileSync(argv[3] ?? `${ROOT}src/relay/schema.ts`, formatted(relaySchema()))
