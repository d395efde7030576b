import { execFileSync } from 'node:child_process'
import { closeSync, constants, openSync, readFileSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { createLog, LineWriter, type LogOptions } from '../../../src/base/log.ts'
import { temporaryFolder } from '../../support/folder.ts'

function logLines(options: Pick<LogOptions, 'format' | 'verbosity'>) {
  const lines: string[] = []
  return { lines, log: createLog({ ...options, destination: { write: line => void lines.push(line) } }) }
}

describe('createLog', () => {
  it('writes a line for people in the text format', () => {
    const { lines, log } = logLines({ format: 'text', verbosity: 0 })
    log.warn({ service: 'ns/web', value: 'two words' }, 'refused')
    expect(lines.join('')).toMatch(/^W \d{4}-\S+Z refused service=ns\/web value="two words"\n$/)
  })

  it('keeps hostile values on their line and shows hidden characters', () => {
    const { lines, log } = logLines({ format: 'text', verbosity: 0 })
    log.info({ value: 'a\nI 2026 forged \u202e\u0007', err: new Error('x\ny') }, 'refused')
    expect(lines).toHaveLength(1)
    expect(lines[0]?.trimEnd().split('\n')).toHaveLength(1)
    expect(lines[0]).toContain('\\u{202e}')
    for (const hidden of ['\u202e', '\u0007']) expect(lines[0]).not.toContain(hidden)
  })

  it('says the cause of an error once', () => {
    const cause = Object.assign(new Error('listen EADDRINUSE'), { code: 'EADDRINUSE' })
    const outer = Object.assign(new Error('Service ns/web: listen EADDRINUSE', { cause }), { code: 'OUTER' })
    const text = logLines({ format: 'text', verbosity: 0 })
    text.log.warn({ err: outer }, 'rejected')
    expect(text.lines[0]).toMatch(/ err="Service ns\/web: listen EADDRINUSE"\n$/)
    const json = logLines({ format: 'json', verbosity: 0 })
    json.log.warn({ err: new Error('no relay', { cause }) }, 'rejected')
    json.log.warn({ err: outer }, 'rejected')
    expect(JSON.parse(json.lines[0] ?? '').err).toMatchObject({
      type: 'Error',
      message: 'no relay: listen EADDRINUSE',
    })
    expect(JSON.parse(json.lines[1] ?? '').err).toMatchObject({
      code: 'OUTER',
      stack: expect.stringContaining('at '),
    })
  })

  it.each([
    [0, false, false],
    [2, true, false],
    [4, true, true],
  ])('at -v=%i debug is %s and trace %s', (verbosity, debug, trace) => {
    const { lines, log } = logLines({ format: 'json', verbosity })
    log.debug('debug')
    log.trace('trace')
    const written = ['debug', 'trace'].map(level => lines.some(line => line.includes(`"${level}"`)))
    expect(written).toEqual([debug, trace])
  })
})

function writerTo(fd: number): LineWriter {
  return new LineWriter({ fd, lostLine: lines => `lost ${lines}\n` })
}

describe('LineWriter', () => {
  it('writes lines to a file, after what stands there', () => {
    const path = join(temporaryFolder(), 'log')
    const fd = openSync(path, 'w')
    const writer = writerTo(fd)
    for (const line of ['one\n', 'two\n']) writer.write(line)
    closeSync(fd)
    expect(readFileSync(path, 'utf8')).toBe('one\ntwo\n')
  })

  it('loses what a full pipe does not take, whole lines only, and reports how many when it is read again', () => {
    const path = join(temporaryFolder(), 'pipe')
    execFileSync('mkfifo', [path])
    // Open at both ends: nothing waits for the other end.
    const fd = openSync(path, constants.O_RDWR)
    const writer = writerTo(fd)
    const line = (number: number) => `${number} ${'x'.repeat(9_000)}\n`
    for (let number = 0; number < 20; number++) writer.write(line(number))
    const room = Buffer.alloc(1 << 20)
    let text = room.toString('utf8', 0, readSync(fd, room))
    writer.write('last\n')
    text += room.toString('utf8', 0, readSync(fd, room))
    closeSync(fd)
    const lines = text.trimEnd().split('\n')
    const whole = lines.length - 2
    expect(lines.slice(0, whole)).toEqual(Array.from({ length: whole }, (_, i) => line(i).trimEnd()))
    expect(lines.slice(whole)).toEqual([`lost ${20 - whole}`, 'last'])
  })

  it('goes on after a full disk', () => {
    const fd = openSync('/dev/full', 'w')
    const writer = writerTo(fd)
    expect(() => writer.write('one\n')).not.toThrow()
    closeSync(fd)
  })
})
