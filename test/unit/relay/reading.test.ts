import { describe, expect, it } from 'vitest'
import { framed } from '../../../src/api/grpc/rpc.ts'
import type { RelayCallHandlers } from '../../../src/relay/connection.ts'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { Reading, RelayRefusal } from '../../../src/relay/reading.ts'
import { discovery } from '../../../src/relay/schema.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { METADATA, RELAYED } from '../../../src/relay/types.ts'
import { decodeMessage } from '../../../src/wire/protobuf/decoder.ts'
import type { MessageOf } from '../../../src/wire/protobuf/table.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { KeptCall, requestOf } from '../../support/relay-call.ts'

type Response = MessageOf<typeof discovery.DeltaDiscoveryResponse>

const nothing = () => undefined

/** A list or watch of Services at a relay that the test speaks for. */
function reading(what: 'list' | 'watch') {
  const made: RelayCallHandlers[] = []
  const sent: Buffer[] = []
  const call = {
    send: (frame: Buffer) => void sent.push(frame.subarray(5)),
    finish: nothing,
    pause: nothing,
    resume: nothing,
    cancel: nothing,
  }
  const ended: (string | undefined)[] = []
  const its = new Reading({
    wanted: { type: RELAYED.Service, name: undefined, what, revision: '', seconds: undefined },
    link: {
      call: (_method: string, handlers: RelayCallHandlers) => {
        made.push(handlers)
        return call
      },
      close: nothing,
    },
    clock: new FakeClock(),
    random: () => 0.5,
    nodeName: 'node',
    metadata: {},
    signal: new AbortController().signal,
    gatheredBytesMax: 10_000,
    cluster: nothing,
    advanced: nothing,
    isElsewhere: nothing,
    ended: why => ended.push(why?.message),
  })
  const hear = (response: Response, more = Buffer.alloc(0)): void => {
    const bytes = framed(discovery.DeltaDiscoveryResponse, response).subarray(5)
    made[0]?.message(Buffer.concat([bytes, more]))
  }
  const said = () => sent.map(bytes => decodeMessage(discovery.DeltaDiscoveryRequest, bytes))
  return { its, answer: its.open(), ended, hear, said }
}

it('F181: a node gives up a list without an end', async () => {
  const { answer, ended, hear } = reading('list')
  const resources = [{ name: 'a', resource: { value: Buffer.alloc(1_000) } }]
  for (let time = 0; time < 20; time++) hear({ resources })
  await expect(answer).rejects.toThrow(RelayRefusal)
  expect(ended).toEqual(['the relay sends a list or a difference without an end'])
})

it('rejects for a caller that waits for the answer when the client closes', async () => {
  const { its, answer, ended } = reading('watch')
  its.end()
  await expect(answer).rejects.toThrow('aborted')
  expect(ended).toEqual([undefined])
})

describe('F197: a relay of a newer version', () => {
  const { typeUrl } = RELAYED.Service
  const value = Buffer.from('object')

  it('may send fields and types that a node does not know', async () => {
    const { answer, hear, said } = reading('list')
    // Field 99, of any type.
    const unknown = Buffer.from([0x9a, 0x06, 3, 1, 2, 3])
    hear({ type_url: 'type.googleapis.com/of.tomorrow', nonce: 'n1', system_version_info: '9' }, unknown)
    hear(
      {
        type_url: typeUrl,
        nonce: 'n2',
        system_version_info: '7',
        resources: [{ name: 'a', version: '7', resource: { type_url: typeUrl, value } }],
      },
      unknown,
    )
    const chunks: Uint8Array[] = []
    for await (const chunk of (await answer).body) chunks.push(chunk)
    expect(Buffer.concat(chunks).includes(value)).toBe(true)
    expect(said().slice(1)).toEqual([
      { type_url: 'type.googleapis.com/of.tomorrow', response_nonce: 'n1' },
      { type_url: typeUrl, response_nonce: 'n2' },
    ])
  })

  it('is left where it sends objects that a node cannot read', async () => {
    const { answer, ended, hear } = reading('watch')
    const type = 'type.googleapis.com/k8s.io.api.core.v2.Service'
    hear({
      type_url: typeUrl,
      system_version_info: '7',
      resources: [{ name: 'a', version: '7', resource: { type_url: type, value } }],
    })
    await expect(answer).rejects.toThrow(RelayRefusal)
    expect(ended).toEqual([`the relay sends "${type}" as a Service; this version cannot read it`])
  })
})

it('F185: no reader begins before it is known which cluster a relay is of', async () => {
  const clock = new FakeClock()
  const state = new RelayState({ clock, proxyName: '' })
  const { Service, EndpointSlice } = state.collections
  EndpointSlice.seal('10')
  const call = new KeptCall()
  const server = new DiscoveryServer({ state, clock })
  const metadata = { [METADATA.revision]: '10', [METADATA.cluster]: 'a' }
  server.deltas(call).message(requestOf({ metadata, type_url: RELAYED.EndpointSlice.typeUrl }))
  await clock.advance(100)
  expect([call.text, call.ended]).toEqual(['', []])
  state.identify('b')
  Service.seal('20')
  await clock.advance(100)
  expect([call.text, call.ended]).toEqual(['', ['15 this is cluster b, not a']])
  server.close()
})
