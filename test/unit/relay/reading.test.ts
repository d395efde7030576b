import { expect, it } from 'vitest'
import { framed } from '../../../src/api/grpc/rpc.ts'
import type { RelayCallHandlers } from '../../../src/relay/connection.ts'
import { DiscoveryServer } from '../../../src/relay/discovery-server.ts'
import { Reading, RelayRefusal } from '../../../src/relay/reading.ts'
import { discovery } from '../../../src/relay/schema.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { METADATA, RELAYED_TYPES, type RelayedType } from '../../../src/relay/types.ts'
import { FakeClock } from '../../support/fake-clock.ts'

function typeOf(kind: string): RelayedType {
  const type = RELAYED_TYPES.find(each => each.kind === kind)
  if (type === undefined) throw new Error(kind)
  return type
}

it('F181: a node gives up a list without an end', async () => {
  let handlers: RelayCallHandlers | undefined
  const nothing = () => undefined
  const call = { send: nothing, finish: nothing, pause: nothing, resume: nothing, cancel: nothing }
  const link = {
    call: (_method: string, its: RelayCallHandlers) => {
      handlers = its
      return call
    },
    close: nothing,
  }
  const ended: (string | undefined)[] = []
  const reading = new Reading({
    wanted: { type: typeOf('Service'), name: undefined, what: 'list', revision: '', seconds: undefined },
    link,
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
  const answer = reading.open()
  const resources = [{ name: 'a', resource: { value: Buffer.alloc(1_000) } }]
  const part = framed(discovery.DeltaDiscoveryResponse, { resources }).subarray(5)
  for (let time = 0; time < 20; time++) handlers?.message(part)
  await expect(answer).rejects.toThrow(RelayRefusal)
  expect(ended).toEqual(['the relay sends a list or a difference without an end'])
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
