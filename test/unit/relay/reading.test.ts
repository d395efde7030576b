import { describe, expect, it } from 'vitest'
import { framed } from '../../../src/api/grpc/rpc.ts'
import type { RelayCallHandlers } from '../../../src/relay/connection.ts'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { Reading, RelayRefusal } from '../../../src/relay/reading.ts'
import { discovery } from '../../../src/relay/schema.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { METADATA, RELAYED_TYPES, type RelayedType } from '../../../src/relay/types.ts'
import { decodeMessage } from '../../../src/wire/protobuf/decoder.ts'
import type { MessageOf } from '../../../src/wire/protobuf/table.ts'
import { FakeClock } from '../../support/fake-clock.ts'

type Response = MessageOf<typeof discovery.DeltaDiscoveryResponse>

function typeOf(kind: string): RelayedType {
  const type = RELAYED_TYPES.find(each => each.kind === kind)
  if (type === undefined) throw new Error(kind)
  return type
}

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
    wanted: { type: typeOf('Service'), name: undefined, what, revision: '', seconds: undefined },
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
  return { answer: its.open(), ended, hear, said }
}

it('F181: a node gives up a list without an end', async () => {
  const { answer, ended, hear } = reading('list')
  const resources = [{ name: 'a', resource: { value: Buffer.alloc(1_000) } }]
  for (let time = 0; time < 20; time++) hear({ resources })
  await expect(answer).rejects.toThrow(RelayRefusal)
  expect(ended).toEqual(['the relay sends a list or a difference without an end'])
})

describe('F197: a relay of a newer version', () => {
  const { typeUrl } = typeOf('Service')
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
  const [services, slices] = ['Service', 'EndpointSlice'].map(kind => {
    const collection = state.collections.get(typeOf(kind).typeUrl)
    if (collection === undefined) throw new Error(kind)
    return collection
  })
  slices?.seal('10')
  const ended: number[] = []
  let written = 0
  const call = {
    organizations: [],
    write: () => ++written > 0,
    end: (code: number) => void ended.push(code),
    attempt: (step: () => void) => {
      try {
        step()
      } catch (error) {
        ended.push(Object(error).code)
      }
    },
  }
  const server = new DiscoveryServer({ state, clock })
  const fields = Object.entries({ [METADATA.revision]: '10', [METADATA.cluster]: 'a' }).map(
    ([key, value]) => ({ key, value: { string_value: value } }),
  )
  const request = framed(discovery.DeltaDiscoveryRequest, {
    node: { id: 'node', metadata: { fields } },
    type_url: typeOf('EndpointSlice').typeUrl,
  })
  server.deltas(call).message(request.subarray(5))
  await clock.advance(100)
  expect([written, ended]).toEqual([0, []])
  state.identify('b')
  services?.seal('20')
  for (const each of state.collections.values()) each.tell()
  await clock.advance(100)
  expect([written, ended]).toEqual([0, [15]])
  server.close()
})
