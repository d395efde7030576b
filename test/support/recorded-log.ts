import { createLog } from '../../src/base/log.ts'

interface Recorded {
  readonly level: string
  readonly msg: string
  readonly [field: string]: unknown
}

/** A log, and what it has: the records, and those whose message has a text. */
export function recordedLog(verbosity = 0) {
  const lines: Recorded[] = []
  const destination = { write: (text: string) => void lines.push(JSON.parse(text)) }
  const log = createLog({ format: 'json', verbosity, destination })
  return { log, lines, said: (text: string) => lines.filter(({ msg }) => msg.includes(text)) }
}
