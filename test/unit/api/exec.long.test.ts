import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { buildSync } from 'esbuild'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type ProgramOptions, runProgram } from '../../../src/api/exec.ts'
import { ApiFeed } from '../../../src/api/feed.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { createLog } from '../../../src/base/log.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { eventually, patientMs } from '../../support/patience.ts'
import { endpoint, node, service, slice } from '../model/objects.ts'
import { detailed, Viewer } from './views.ts'

let folder = ''
let records: Record<string, unknown>[] = []
let stop = new AbortController()
let viewer = new Viewer()
let feed = new ApiFeed({ clock: systemClock, source: () => undefined })

beforeEach(() => {
  folder = temporaryFolder()
  records = []
  stop = new AbortController()
  viewer = new Viewer()
  feed = new ApiFeed({ clock: systemClock, source: () => undefined })
})

afterEach(() => {
  stop.abort()
})

function options(script: string, rest: Partial<ProgramOptions> = {}): ProgramOptions {
  return {
    name: 'back-end',
    command: '/bin/sh',
    args: ['-c', script],
    feed,
    clock: systemClock,
    random: () => 0,
    log: createLog({
      format: 'json',
      verbosity: 0,
      destination: { write: line => void records.push(JSON.parse(line)) },
    }),
    timeoutMs: 10_000,
    ...rest,
  }
}

/** A new state, which differs from the others. */
function offer(last: number): void {
  const events = [node(), service('web'), slice('s', 'web', [endpoint(`10.1.0.${last}`)])].map(detailed)
  feed.offer(viewer.take(events))
}

/** Of the clock's uses, those between two runs. */
const isPause = (ms: number) => ms >= 400 && ms < 2_000

const file = (name: string) => join(folder, name)
const read = (name: string) => {
  try {
    return readFileSync(file(name), 'utf8')
  } catch {
    return ''
  }
}

function isAlive(pid: string): boolean {
  try {
    process.kill(Number(pid), 0)
    return true
  } catch {
    return false
  }
}

describe('a program for each state', () => {
  it('gets the whole state on its standard input, and its end is reported', async () => {
    offer(1)
    const script = `cat > ${file('in')}; echo done; echo odd >&2`
    expect(await runProgram(options(script, { once: true }), stop.signal)).toBe(true)
    expect(JSON.parse(read('in'))).toEqual({
      Service: {
        Namespace: 'ns',
        Name: 'web',
        Type: 'ClusterIP',
        IPs: { ClusterIPs: { V4: ['10.96.0.1'] }, ExternalIPs: {} },
        Ports: [{ Protocol: 1, Port: 80, TargetPort: 80 }],
      },
      Endpoints: [{ IPs: { V4: ['10.1.0.1'] }, PortOverrides: [{ Port: 8080 }] }],
    })
    expect(records).toMatchObject([
      { level: 'info', command: 'back-end', code: 0, stdout: 'done', stderr: 'odd', state: 1 },
    ])
  })

  it('went not well when it was asked for once and ended before it was over', async () => {
    const running = runProgram(options(`echo >${file('began')}; sleep 60`, { once: true }), stop.signal)
    offer(1)
    await eventually(() => read('began') !== '', 'it runs')
    stop.abort()
    expect(await running).toBe(false)
    const none = new ApiFeed({ clock: systemClock, source: () => undefined })
    expect(await runProgram(options('exit 0', { once: true, feed: none }), stop.signal)).toBe(false)
    expect(await runProgram(options('exit 0', { feed: none }), stop.signal)).toBe(true)
  })

  it('runs once at a time, and the newest state wins', async () => {
    const script = `mkdir ${file('lock')} || echo two >> ${file('bad')}
      cat >> ${file('in')}; sleep 0.3; rmdir ${file('lock')}`
    const running = runProgram(options(script), stop.signal)
    offer(1)
    await eventually(() => read('in').includes('10.1.0.1'), 'the first run has read')
    for (const last of [2, 3, 4, 5]) offer(last)
    await eventually(() => records.length === 2, 'the second run has ended')
    stop.abort()
    expect(await running).toBe(true)
    expect(read('bad')).toBe('')
    expect(read('in').match(/10\.1\.0\.\d/g)).toEqual(['10.1.0.1', '10.1.0.5'])
  })

  it('is not started before there is a state, nor again for the same', async () => {
    const running = runProgram(options(`echo x >> ${file('runs')}`), stop.signal)
    await new Promise(done => setTimeout(done, 50))
    expect(read('runs')).toBe('')
    offer(1)
    await eventually(() => records.length === 1, 'it has run')
    await new Promise(done => setTimeout(done, 100))
    expect(read('runs')).toBe('x\n')
    stop.abort()
    await running
  })

  it('is started again after a failure, later and later, with the newest state, and soon again once it went well', async () => {
    const waits: number[] = []
    const clock = {
      ...systemClock,
      after(ms: number, run: () => void) {
        if (!isPause(ms)) return systemClock.after(ms, run)
        waits.push(ms)
        return systemClock.after(1, run)
      },
    }
    const script = `cat >> ${file('in')}; case $(wc -l < ${file('in')}) in 1|2|3|5) exit 3; esac`
    const running = runProgram(options(script, { clock }), stop.signal)
    offer(1)
    await eventually(() => records.some(({ code }) => code === 0), 'it went well')
    offer(2)
    await eventually(() => records.filter(({ code }) => code === 0).length === 2, 'it went well again')
    stop.abort()
    expect(await running).toBe(true)
    expect(records.map(({ code }) => code)).toEqual([3, 3, 3, 0, 3, 0])
    expect(records[0]).toMatchObject({ level: 'warn', trouble: 'exit code 3' })
    // Half of each step, as the dice have it; of the third, a part for every state and one for those that failed.
    expect(waits).toEqual([500, 1_000, 1_000, 1_000, 500])
  })

  it('is started for a newer state after the first distance, and for no more often than that', async () => {
    const timers = new Map<object, () => void>()
    const waits = (): readonly (() => void)[] => [...timers.values()]
    const clock = {
      ...systemClock,
      after(ms: number, run: () => void) {
        if (!isPause(ms)) return systemClock.after(ms, run)
        const key = {}
        timers.set(key, run)
        return () => void timers.delete(key)
      },
    }
    const pass = async (runs: number) => {
      await eventually(() => records.length === runs && timers.size === 1, `it has failed ${runs} times`)
      const [run] = waits()
      timers.clear()
      run?.()
    }
    const script = `cat > ${file('in')}; ! grep -q '10.1.0.1"' ${file('in')}`
    const running = runProgram(options(script, { clock }), stop.signal)
    offer(1)
    await pass(1)
    await eventually(() => records.length === 2 && timers.size === 1, 'it has failed twice')
    for (const last of [2, 3]) offer(last)
    await new Promise(done => setTimeout(done, 100))
    expect(records).toHaveLength(2)
    await pass(2)
    await eventually(() => records.length === 3, 'it went well')
    expect(records[2]).toMatchObject({ code: 0, state: 3 })
    offer(1)
    await pass(4)
    await pass(5)
    await pass(6)
    // What is left of the third distance would pass for the state that failed three times.
    await eventually(() => timers.size === 1, 'it waits')
    expect(records).toHaveLength(6)
    offer(4)
    await eventually(() => records.length === 7, 'it went well at once')
    expect(records[6]).toMatchObject({ code: 0, state: 5 })
    expect(timers.size).toBe(0)
    stop.abort()
    expect(await running).toBe(true)
  })

  it('that hangs is ended with all that it has started, be they deaf', async () => {
    offer(1)
    const script = `trap '' TERM; (trap '' TERM; echo $$ > ${file('pid')}; sleep 60) & sleep 60`
    const began = performance.now()
    const isFine = await runProgram(options(script, { once: true, timeoutMs: 300 }), stop.signal)
    expect(isFine).toBe(false)
    expect(performance.now() - began).toBeLessThan(patientMs(8_000))
    expect(records).toMatchObject([{ level: 'warn', trouble: 'killed after 300 ms (--exec-timeout)' }])
    const pid = read('pid').trim()
    await eventually(() => !isAlive(`-${pid}`), 'the group is gone')
  })

  it('that obeys takes with it those of its group that do not', async () => {
    offer(1)
    const script = `(trap '' TERM; echo $$ > ${file('pid')}; exec sleep 60) & wait`
    const running = runProgram(options(script), stop.signal)
    await eventually(() => read('pid').endsWith('\n'), 'the deaf one is there')
    const group = `-${read('pid').trim()}`
    try {
      stop.abort()
      await running
      await eventually(() => !isAlive(group), 'the group is gone')
    } finally {
      if (isAlive(group)) process.kill(Number(group), 'SIGKILL')
    }
  })

  it('that floods its outputs is heard in part', async () => {
    offer(1)
    const script = `cat > /dev/null; head -c 5000000 /dev/zero | tr '\\0' x; head -c 3000 /dev/zero | tr '\\0' y >&2`
    expect(await runProgram(options(script, { once: true }), stop.signal)).toBe(true)
    const [{ stdout, stderr } = {}] = records
    expect(stdout).toBe(`${'x'.repeat(2_048)} … and ${5_000_000 - 2_048} bytes more`)
    expect(stderr).toBe(`${'y'.repeat(2_048)} … and ${3_000 - 2_048} bytes more`)
  })

  it('need not read its input', async () => {
    const many = Array.from({ length: 3_000 }, (_, index) =>
      service(`web-${index}`, { clusterIP: `10.96.${index >> 8}.${1 + (index % 255)}` }),
    )
    feed.offer(viewer.take([node(), ...many].map(detailed)))
    expect(await runProgram(options('exit 0', { once: true }), stop.signal)).toBe(true)
    expect(await runProgram(options('exec <&-; sleep 0.2', { once: true }), stop.signal)).toBe(true)
    expect(records).toHaveLength(2)
  })

  it('that leaves something behind with its pipes open does not hold up the next', async () => {
    offer(1)
    const script = `sleep 60 & echo $! > ${file('pid')}; echo here`
    expect(await runProgram(options(script, { once: true }), stop.signal)).toBe(true)
    expect(records).toMatchObject([{ code: 0, stdout: 'here' }])
    process.kill(Number(read('pid').trim()), 'SIGKILL')
  })

  it.each([
    ['that is absent', { command: '/nowhere/nothing', args: [] }, 'ENOENT'],
    ['that is a folder', { command: '/', args: [] }, 'EACCES'],
    ['with more arguments than the kernel takes', { args: Array(40).fill('x'.repeat(120_000)) }, 'E2BIG'],
    ['that is ended by a signal of another', { args: ['-c', 'kill -9 $$'] }, 'ended by SIGKILL'],
  ])('%s fails, which is reported', async (_, rest, trouble) => {
    offer(1)
    expect(await runProgram(options('', { ...rest, once: true }), stop.signal)).toBe(false)
    expect(records).toMatchObject([{ level: 'warn', trouble: expect.stringContaining(trouble) }])
  })

  it('ends when kprobe does, and so does the wait for the next try', async () => {
    offer(1)
    const running = runProgram(options(`echo $$ > ${file('pid')}; sleep 60`), stop.signal)
    await eventually(() => read('pid') !== '', 'it runs')
    stop.abort()
    await running
    expect(isAlive(read('pid').trim())).toBe(false)
    expect(records).toEqual([])
    const again = new AbortController()
    const waiting = runProgram(options('exit 1'), again.signal)
    await eventually(() => records.length === 1, 'it has failed')
    again.abort()
    expect(await waiting).toBe(false)
  })
})

it('a process without file descriptors to spare fails a run, and not itself', () => {
  const contents = `
    import { closeSync, openSync } from 'node:fs'
    import { runProgram } from './src/api/exec.ts'
    const lines = []
    const log = { info: () => undefined, warn: ({ trouble }) => lines.push(trouble) }
    const none = { values: () => [] }
    const feed = { newer: async () => ({ number: 1, services: none, endpoints: none }) }
    const clock = { nowMs: () => 0, after: () => () => undefined }
    const options = { name: 'it', command: '/bin/true', args: [], feed, clock, random: () => 0, log, timeoutMs: 0, once: true }
    const open = []
    try { for (;;) open.push(openSync('/dev/null')) } catch {}
    const isFine = await runProgram(options, new AbortController().signal).catch(error => error.message)
    for (const fd of open) closeSync(fd)
    console.log(isFine, lines.join(''))
  `
  const stdin = { contents, resolveDir: process.cwd() }
  const outfile = file('run.mjs')
  buildSync({ stdin, outfile, bundle: true, platform: 'node', format: 'esm', logLevel: 'silent' })
  const limited = ['-c', 'ulimit -n 64; exec "$0" "$@"', process.execPath, outfile]
  const run = spawnSync('/bin/sh', limited, { timeout: patientMs(8_000) })
  expect(run.stdout.toString()).toMatch(/^false .*too many open files/)
})
