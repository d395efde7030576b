import { describe, expect, it } from 'vitest'
import { createLog, type LogOptions } from '../../../src/base/log.ts'

function logLines(options: Pick<LogOptions, 'format' | 'verbosity'>): {
  lines: string[]
  log: ReturnType<typeof createLog>
} {
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
    expect([
      lines.some(line => line.includes('"debug"')),
      lines.some(line => line.includes('"trace"')),
    ]).toEqual([debug, trace])
  })
})
