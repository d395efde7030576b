import type { Io } from '../../src/cli/io.ts'
import { OPTIONAL_PARTS } from '../../src/optional-parts.ts'

type Given = Partial<Omit<Io, 'out' | 'outBytes' | 'err' | 'outWritten'>>

/** What a command meets without a terminal and without signals; it keeps what the command writes. */
export class FakeIo implements Io {
  stdout = ''
  stderr = ''
  readonly outLost: AbortSignal
  readonly signal: AbortSignal
  readonly outBacklogBytes: () => number
  readonly color: boolean
  readonly terminal: boolean
  readonly columns: number | undefined
  readonly on: Io['on']
  readonly hostName: string
  readonly processId: number
  readonly parts = OPTIONAL_PARTS

  constructor(given: Given = {}) {
    const never = new AbortController().signal
    this.outLost = given.outLost ?? never
    this.signal = given.signal ?? never
    this.outBacklogBytes = given.outBacklogBytes ?? (() => 0)
    this.color = given.color ?? false
    this.terminal = given.terminal ?? false
    this.columns = given.columns
    this.on = given.on ?? (() => () => undefined)
    this.hostName = given.hostName ?? 'here'
    this.processId = given.processId ?? 1
  }

  readonly out = (text: string): void => {
    this.stdout += text
  }

  /** Bytes are one text each, by their octets. */
  readonly outBytes = (bytes: Uint8Array): void => {
    this.stdout += Buffer.from(bytes).toString('latin1')
  }

  readonly outWritten = (): Promise<void> => {
    return Promise.resolve()
  }

  readonly err = (text: string): void => {
    this.stderr += text
  }
}
