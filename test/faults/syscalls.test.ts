import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { errnoNumber } from '../../src/netlink/errors.ts'
import { SystemError } from '../../src/netlink/transport.ts'
import type { Daemon } from '../support/daemon.ts'
import type { TransportFaults } from '../support/faulty-transport.ts'
import { eventually } from '../support/patience.ts'
import { tried } from '../support/runs.ts'
import { FileSite } from './file-site.ts'
import { differences, nft } from './kernel.ts'
import { services } from './objects.ts'
import { tell } from './story.ts'

const site = FileSite.ofEachTest()

const SEND_ERRORS = ['ENOBUFS', 'EINTR', 'EAGAIN', 'ENOMEM']

/** A fault that hits the call of this number, counted from 1, and counts all calls. */
function failing(code: string, when: number) {
  const counter = { calls: 0 }
  const hit = <T>(value: T): T => {
    counter.calls++
    if (counter.calls === when) throw new SystemError('injected', errnoNumber(code), code)
    return value
  }
  return { counter, hit }
}

describe('in simulated time', () => {
  it.each(SEND_ERRORS)('F45: a send that fails with %s is made up for, whichever it is', async code => {
    const { counter, hit } = failing(code, 0)
    const whole = await tell({ onSend: hit })
    expect(whole.differences).toEqual([])
    expect(counter.calls).toBeGreaterThan(60)
    for (const when of tried(counter.calls, SEND_ERRORS.indexOf(code))) {
      const { differences: found, rig, kernel } = await tell({ onSend: failing(code, when).hit })
      expect(found, `send ${when}`).toEqual([])
      expect(rig.of('quarantined'), `send ${when}`).toEqual([])
      // Not one commit more or less: nothing was done twice, or by halves.
      expect(kernel.generation, `send ${when}`).toBe(whole.kernel.generation)
    }
  })

  it('F46: ENOBUFS in place of an answer has the outcome read back, whichever answer it is', async () => {
    const { counter, hit } = failing('ENOBUFS', 0)
    const whole = await tell({ onReceive: hit })
    for (const when of tried(counter.calls)) {
      const faults: TransportFaults = { onReceive: failing('ENOBUFS', when).hit }
      const { differences: found, rig, kernel } = await tell(faults)
      expect(found, `answer ${when}`).toEqual([])
      expect(rig.of('quarantined'), `answer ${when}`).toEqual([])
      expect(kernel.generation, `answer ${when}`).toBe(whole.kernel.generation)
    }
  })
})

/** Puts a command under strace, which has these calls fail. */
const strace = (inject: string, trace: string): readonly string[] => [
  'strace',
  '-f',
  '--seccomp-bpf',
  '-o',
  trace,
  '-e',
  'trace=sendto,recvmsg',
  '-e',
  `inject=${inject}`,
]

/** A start on an empty kernel in which the calls of one kind fail as told: the daemon, and whether any did. */
async function startUnder(inject: string): Promise<{ readonly daemon: Daemon; readonly hit: boolean }> {
  nft('flush ruleset')
  const trace = join(site.folder, 'trace')
  const daemon = site.daemon({ args: ['--once'], wrapper: strace(inject, trace) })
  expect((await daemon.ended()).code, inject).toBe(0)
  expect(await differences(services(3)), inject).toEqual([])
  return { daemon, hit: readFileSync(trace, 'utf8').includes('(INJECTED)') }
}

const CALLS_MAX = 40

describe('under strace', () => {
  it.each(SEND_ERRORS)('F45: a daemon whose n-th send fails with %s starts all the same', async code => {
    site.write(services(3))
    let last = 0
    for (const when of tried(CALLS_MAX, SEND_ERRORS.indexOf(code))) {
      const { daemon, hit } = await startUnder(`sendto:error=${code}:when=${when}`)
      last = when
      // None is told of when the outcome had to be read back.
      expect(daemon.said('committed').length, `send ${when}`).toBeLessThanOrEqual(1)
      if (!hit) break
    }
    // Generation, two tables, generation; generation, commit, generation.
    expect(last).toBeGreaterThan(6)
  })

  it('F46: a daemon whose n-th receive ends with ENOBUFS starts all the same', async () => {
    site.write(services(3))
    let last = 0
    for (const when of tried(CALLS_MAX)) {
      last = when
      if (!(await startUnder(`recvmsg:error=ENOBUFS:when=${when}`)).hit) break
    }
    expect(last).toBeGreaterThan(6)
  })

  it('F46: an idle daemon of which every seventh receive fails logs nothing and sends no more requests', async () => {
    const trace = join(site.folder, 'trace')
    const daemon = await site.running(services(3), {
      wrapper: strace('recvmsg:error=ENOBUFS:when=70+7', trace),
    })
    const calls = (text: string) => readFileSync(trace, 'utf8').split(text).length - 1
    await eventually(() => calls('(INJECTED)') > 5)
    await daemon.caughtUp()
    expect(daemon.said('sync failed')).toEqual([])
    // Each request has one answer: an answer that stays behind is not asked for all the time.
    expect(calls('recvmsg(')).toBeLessThan(2 * calls('sendto('))
  })
})
