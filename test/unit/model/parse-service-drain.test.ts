import { describe, expect, it } from 'vitest'
import { identityOf, isRefusal } from '../../../src/model/fields.ts'
import { parseService } from '../../../src/model/parse-service.ts'
import type { Service } from '../../../src/model/service.ts'
import { refusalLines, service } from './objects.ts'

const ANNOTATION = 'kprobe.io/tcp-drain'

function drained(value: unknown): Service {
  const parsed = parseService(
    identityOf('Service', service('web', {}, { metadata: { annotations: { [ANNOTATION]: value } } })),
  )
  if (isRefusal(parsed)) throw new Error(JSON.stringify(parsed))
  return parsed
}

describe('the annotation kprobe.io/tcp-drain', () => {
  it.each([
    ['leave', undefined],
    ['cut', 0],
    ['0', 0],
    ['0s', 0],
    ['30s', 30_000],
    ['1m30s', 90_000],
    ['1500ms', 1_500],
    ['24h', 86_400_000],
  ])('%j is read as %j ms', (value, ms) => {
    expect(drained(value).tcpDrainMs).toBe(ms)
    expect(drained(value).refusals).toEqual([])
  })

  it.each(['', 'CUT', '30', '-1s', '25h', 'soon', 30, null, {}])('%j is refused and read as leave', value => {
    const read = drained(value)
    expect(read.tcpDrainMs).toBeUndefined()
    expect(refusalLines(read)).toEqual([
      expect.stringMatching(
        /metadata\.annotations\[kprobe\.io\/tcp-drain\] = .*neither leave, cut nor a duration/,
      ),
    ])
  })
})
