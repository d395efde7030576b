import type { Raw } from './wire.ts'

/** One batch, and what comes of it. */
export interface Case {
  readonly title: string
  /** Committed before, besides the table `t` itself. */
  readonly given?: readonly Raw[]
  readonly batch: readonly Raw[]
  /** Replies, in the words of `received`; batch begin is number 1, so that the first message is 2. */
  readonly replies: readonly string[]
  /** Whether the batch makes a new generation. */
  readonly commits?: boolean
}
