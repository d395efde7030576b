import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../src/base/errors.ts'
import { type ApiBody, type ApiClient, ApiError } from '../../../../src/source/kube/api-client.ts'
import { Exchange } from '../../../../src/source/kube/exchange.ts'
import { FailureError, failureOfError, failureOfStatus } from '../../../../src/source/kube/failure.ts'
import type { ApiStatus } from '../../../../src/source/kube/wire/encodings.ts'
import { FakeClock, settle } from '../../../support/fake-clock.ts'
import { IS_QUICK } from '../../../support/runs.ts'
import { ScriptedApi, service, services } from '../../../support/scripted-api.ts'

function exchange(clock = new FakeClock()) {
  const api = new ScriptedApi()
  const accept = 'application/vnd.kubernetes.protobuf, application/json'
  return { api, exchange: new Exchange({ client: api, clock, accept }) }
}

/** An exchange whose watches have this body. */
function reading(body: ApiBody, clock = new FakeClock()): Exchange {
  const contentType = 'application/json;stream=watch'
  const client: ApiClient = {
    server: 'test',
    send: async () => ({ status: 200, contentType, retryAfterMs: undefined, body }),
    close: async () => undefined,
  }
  return new Exchange({ client, clock, accept: 'application/json' })
}

const DROP = 'drop=metadata.managedFields'
const OPENING = { kind: 'Service', path: '/api/v1/services' } as const

function opening() {
  return { ...OPENING, signal: new AbortController().signal }
}

describe('exchange', () => {
  it('A35: asks for the configured types, with a bound on silence', async () => {
    const { api, exchange: each } = exchange()
    void each.list(opening(), () => undefined).catch(() => undefined)
    expect(api.take().request).toMatchObject({
      method: 'GET',
      accept: `application/vnd.kubernetes.protobuf;${DROP}, application/json;${DROP}`,
      // The API server ends a list after 60 s itself.
      idleMs: 75_000,
      longLived: false,
    })
    void each.watch(opening()).catch(() => undefined)
    expect(api.take().request).toMatchObject({ idleMs: 20_000, longLived: true })
  })

  it('asks with managedFields from then on when the server rejects the parameter', async () => {
    const { api, exchange: each } = exchange()
    const page = each.list(opening(), () => undefined)
    const first = api.take()
    expect(first.request.accept).toContain(DROP)
    first.status(406, { reason: 'NotAcceptable', message: 'only the following media types are accepted' })
    await settle()
    const second = api.take()
    expect(second.request.accept).toBe('application/vnd.kubernetes.protobuf, application/json')
    second.list([service('a', 1)], '9')
    expect((await page).resourceVersion).toBe('9')
    void each.watch(opening()).catch(() => undefined)
    expect(api.take().request.accept).not.toContain(DROP)
  })

  it('gives the items of a page, its version and its size', async () => {
    const { api, exchange: each } = exchange()
    const names: unknown[] = []
    const page = each.list(opening(), item => names.push(Object(item.metadata).name))
    api.take().list([service('a', 1), service('b', 2)], '9', 'more')
    expect(await page).toMatchObject({ resourceVersion: '9', continue: 'more' })
    expect((await page).bytes).toBeGreaterThan(100)
    expect(names).toEqual(['a', 'b'])
  })

  it.skipIf(IS_QUICK)('lets the event loop have its turn while a large body is read', async () => {
    let breaths = 0
    class BusyClock extends FakeClock {
      #ticks = 0
      override nowMs(): number {
        this.#ticks++
        return this.#ticks
      }
      override breathe(): Promise<void> {
        breaths++
        return Promise.resolve()
      }
    }
    const { api, exchange: each } = exchange(new BusyClock())
    const page = each.list(opening(), () => undefined)
    api.take().list(services(10_000), '9')
    await page
    expect(breaths).toBeGreaterThan(10)
  })

  it('throws the failure that an answer states, whatever the size of its body', async () => {
    const { api, exchange: each } = exchange()
    const first = each.watch(opening())
    api.take().status(403, { reason: 'Forbidden', message: 'no' })
    await expect(first).rejects.toThrow('status 403 Forbidden: no')
    const second = each.watch(opening())
    api.take().status(503, { message: 'x'.repeat(1_000_000) })
    const error = await second.catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(FailureError)
    expect(error).toMatchObject({ failure: { kind: 'unavailable', text: 'status 503' } })
  })

  it('takes a body of a type that it does not know for one that cannot be read', async () => {
    const { api, exchange: each } = exchange()
    const page = each.list(opening(), () => undefined)
    api.take().body('<html>', 'text/html')
    await expect(page).rejects.toThrow(WireError)
  })

  it('reads pages of metadata, and refuses what is none', async () => {
    const { api, exchange: each } = exchange()
    const page = each.metadata(opening())
    api.take().list([service('a', 1)], '9', 'more')
    expect(await page).toMatchObject({ resourceVersion: '9', continue: 'more' })
    expect((await page).items.length).toBe(1)
    for (const body of ['{', 'null', '[]', '{"items":[]}', '{"metadata":{},"items":7}']) {
      const bad = each.metadata(opening())
      api.take().body(body)
      await expect(bad).rejects.toThrow(WireError)
    }
  })

  it('takes a null list of items for an empty one', async () => {
    const { api, exchange: each } = exchange()
    const page = each.metadata(opening())
    api.take().body('{"metadata":{"resourceVersion":"4"},"items":null}')
    expect(await page).toEqual({ items: [], resourceVersion: '4', continue: '' })
  })

  it('has the connection keep what arrives while the reader is away for more than 5 ms, and at once after that', async () => {
    const line = Buffer.from(`${JSON.stringify({ type: 'ADDED', object: service('a', 1) })}\n`)
    const clock = new FakeClock()
    const calls: string[] = []
    const body: ApiBody = {
      hold: () => void calls.push(`hold at ${clock.nowMs()}`),
      resume: async () => void calls.push(`resume at ${clock.nowMs()}`),
      async *[Symbol.asyncIterator]() {
        for (let count = 0; count < 5; count++) yield line
      },
    }
    const each = reading(body, clock)
    const aways = [4, 20, 20, 4, 4]
    for await (const _ of await each.watch(opening(), () => true)) await clock.advance(aways.shift() ?? 0)
    const again = ['hold at 24', 'resume at 44', 'hold at 44', 'resume at 48']
    expect(calls).toEqual(['hold at 9', 'resume at 24', ...again])
    // A reader that leaves holds nothing.
    for (const awayMs of [0, 20])
      for await (const _ of await each.watch(opening(), () => true)) {
        await clock.advance(awayMs)
        break
      }
    expect(calls.slice(6)).toEqual(['hold at 57', 'resume at 72'])
    expect(clock.pending).toBe(0)
  })

  it('passes on together what arrived while the reader was busy', async () => {
    const line = (name: string) =>
      Buffer.from(`${JSON.stringify({ type: 'ADDED', object: service(name, 1) })}\n`)
    const held = [line('a')]
    const body: ApiBody = {
      arrived: () => held.shift(),
      async *[Symbol.asyncIterator]() {
        for (let piece = held.shift(); piece !== undefined; piece = held.shift()) yield piece
      },
    }
    const each = reading(body)
    const names: string[][] = []
    for await (const { events } of await each.watch(opening(), () => true)) {
      names.push(events.map(({ object }) => Object(object.metadata).name))
      if (names.length === 1) held.push(line('b'), line('c'), line('d'))
    }
    expect(names).toEqual([['a'], ['b', 'c', 'd']])
  })

  it('leaves the stream of a watch when its reader does', async () => {
    const { api, exchange: each } = exchange()
    const opened = each.watch(opening())
    const watch = api.take().watch().added(service('a', 1)).added(service('b', 2))
    for await (const { events } of await opened) {
      expect(events.length).toBe(1)
      break
    }
    await settle()
    expect(watch.isLeft).toBe(true)
  })
})

function status(change: Partial<ApiStatus>): ApiStatus {
  return { code: 0, reason: '', message: '', causes: [], retryAfterSeconds: undefined, ...change }
}

describe('failures', () => {
  it('have a text of one line with a bound', () => {
    const { text } = failureOfStatus(
      403,
      status({ reason: 'Forbidden', message: `no\nway ${'x'.repeat(999)}` }),
    )
    expect(text).toMatch(/^status 403 Forbidden: no\\u\{a\}way x+\.\.\.$/)
    expect(text.length).toBe(300)
    const plain = failureOfStatus(401, status({ reason: 'Unauthorized', message: 'Unauthorized' }))
    expect(plain.text).toBe('status 401 Unauthorized')
  })

  it('are made of errors, with bugs of our own apart', () => {
    const failure = failureOfStatus(404, undefined)
    expect(failureOfError(new FailureError(failure))).toBe(failure)
    expect(failureOfError(new ApiError('lost', 'cut')).kind).toBe('connection')
    expect(failureOfError(new WireError('odd')).kind).toBe('broken')
    expect(failureOfError(new TypeError('oops'))).toEqual({ kind: 'fault', text: 'oops', retryAfterMs: 0 })
    expect(failureOfError('thrown').text).toBe('thrown')
  })
})
