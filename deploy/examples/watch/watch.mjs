// A client of `kprobe api`: prints the state of one node, operation by operation, and then each change.
// node watch.mjs [ADDRESS]: unix:///run/kprobe/api.sock by default.
import { readFileSync } from 'node:fs'
import grpc from '@grpc/grpc-js'
import protobuf from 'protobufjs'

const [address = 'unix:///run/kprobe/api.sock'] = process.argv.slice(2)
const proto = readFileSync(new URL('../../../src/api/localv1.proto', import.meta.url), 'utf8')
const type = name => root.lookupType(`localv1.${name}`)
const { root } = protobuf.parse(proto, { keepCase: true })
const OBJECTS = { 1: type('Service'), 2: type('Endpoint') }

const client = new grpc.Client(address.replace(/^tcp:\/\//, ''), grpc.credentials.createInsecure())
const encode = request => Buffer.from(type('WatchReq').encode(request).finish())
const stream = client.makeBidiStreamRequest('/localv1.Sets/Watch', encode, bytes => type('OpItem').decode(bytes))

stream.on('data', ({ Set: value, Delete: ref, Reset: reset }) => {
  if (value) console.log('set', value.Ref.Path, JSON.stringify(OBJECTS[value.Ref.Set].decode(value.Bytes)))
  else if (ref) console.log('delete', ref.Path)
  else if (reset) console.log('reset')
  else {
    console.log('sync')
    // Here a back end applies what it has got; only then it asks for what has changed since.
    stream.write({ NodeName: '' })
  }
})
stream.on('error', error => {
  console.error(error.message)
  process.exitCode = 1
})
stream.write({ NodeName: '' })
