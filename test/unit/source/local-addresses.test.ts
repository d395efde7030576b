import { beforeEach, describe, expect, it } from 'vitest'
import { formatIp, type Ip, parseIp } from '../../../src/base/ip.ts'
import { type LocalAddresses, watchLocalAddresses } from '../../../src/source/local-addresses.ts'
import { FakeClock, settle } from '../../support/fake-clock.ts'

let clock: FakeClock
let read: () => Promise<readonly Ip[]>
let told: string[]
let closed: number
/** What the kernel would call; undefined where it tells nothing. */
let hint: (() => void) | undefined
let hints: boolean

beforeEach(() => {
  hint = undefined
  hints = false
  clock = new FakeClock()
  told = []
  closed = 0
})

const addresses = (...texts: readonly string[]): Ip[] => texts.map(text => parseIp(text) ?? '')

function watch(): LocalAddresses {
  return watchLocalAddresses({
    clock,
    reader: {
      read: () => read(),
      watch: changed => {
        if (!hints) return undefined
        hint = changed
        return async () => {
          hint = undefined
        }
      },
      close: async () => {
        closed++
      },
    },
    changed: ips => told.push(ips.map(formatIp).join(' ')),
    failed: error => told.push(error.message),
    recovered: () => told.push('recovered'),
  })
}

describe('watchLocalAddresses', () => {
  it('reports the addresses at the start and when they change, and not otherwise', async () => {
    read = async () => addresses('127.0.0.1', '192.0.2.1')
    const { stop } = watch()
    await clock.advance(3_000)
    expect(told).toEqual(['127.0.0.1 192.0.2.1'])
    read = async () => addresses('127.0.0.1', '2001:db8::1')
    await clock.advance(1_000)
    expect(told).toEqual(['127.0.0.1 192.0.2.1', '127.0.0.1 2001:db8::1'])
    await stop()
    expect([clock.pending, closed]).toEqual([0, 1])
  })

  it('reads at once when the kernel reports a change, and seldom otherwise', async () => {
    hints = true
    let reads = 0
    read = async () => addresses(`192.0.2.${++reads}`)
    const { stop } = watch()
    await clock.advance(20_000)
    expect(told).toEqual(['192.0.2.1'])
    hint?.()
    hint?.()
    await clock.advance(5)
    expect(told).toEqual(['192.0.2.1', '192.0.2.2'])
    await clock.advance(30_000)
    expect(reads).toBe(3)
    await stop()
    expect([clock.pending, hint]).toEqual([0, undefined])
  })

  it('looks once more when addresses change while it looks', async () => {
    hints = true
    let reads = 0
    read = async () => {
      if (reads++ === 0) hint?.()
      return addresses(`192.0.2.${reads}`)
    }
    const { stop } = watch()
    await clock.advance(10)
    expect(told).toEqual(['192.0.2.1', '192.0.2.2'])
    await stop()
  })

  it.each([
    ['rejects', () => Promise.reject(new Error('ENOBUFS'))],
    [
      'throws',
      () => {
        throw new Error('ENOBUFS')
      },
    ],
  ])('keeps the last list when reading %s, says so once, and goes on', async (_, failing) => {
    read = async () => addresses('192.0.2.1')
    const { stop } = watch()
    await clock.advance(1_500)
    read = failing
    await clock.advance(5_000)
    expect(told).toEqual(['192.0.2.1', 'ENOBUFS'])
    read = async () => addresses('192.0.2.1')
    await clock.advance(1_000)
    expect(told).toEqual(['192.0.2.1', 'ENOBUFS', 'recovered'])
    read = failing
    await clock.advance(1_000)
    expect(told).toEqual(['192.0.2.1', 'ENOBUFS', 'recovered', 'ENOBUFS'])
    await stop()
  })

  it('reports nothing, and no empty list, before the first successful read', async () => {
    read = () => Promise.reject(new Error('EMFILE'))
    const { stop } = watch()
    await clock.advance(3_000)
    expect(told).toEqual(['EMFILE'])
    read = async () => []
    await clock.advance(1_000)
    expect(told).toEqual(['EMFILE', 'recovered', ''])
    await stop()
  })

  it('reports nothing of a read that ends after the stop', async () => {
    let answer: (ips: readonly Ip[]) => void = () => undefined
    read = () =>
      new Promise(resolve => {
        answer = resolve
      })
    const { stop } = watch()
    await settle()
    await stop()
    answer(addresses('192.0.2.1'))
    await clock.advance(5_000)
    expect([told, clock.pending]).toEqual([[], 0])
  })
})
