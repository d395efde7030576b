import type { Raw } from './wire.ts'

/** What comes of a batch. */
export interface Answer {
  /** Replies, in the words of `received`; batch begin is number 1, so that the first message is 2. */
  readonly replies: readonly string[]
  /** Whether the batch makes a new generation. */
  readonly commits?: boolean
}

/** One batch, and what comes of it. */
export interface Case extends Answer {
  readonly title: string
  /** Committed before, besides the table `t` itself. */
  readonly given?: readonly Raw[]
  readonly batch: readonly Raw[]
  /** What kernels up to this version answer instead. */
  readonly older?: Answer & { readonly upTo: readonly [major: number, minor: number] }
}

/** The kernel answers with these replies, if any, and there is no new generation. */
export function answers(
  title: string,
  replies: readonly string[],
  batches: Pick<Case, 'given' | 'batch'>,
): Case {
  return { title, replies, ...batches }
}

/** The kernel commits the batch without a word. */
export function takes(title: string, batch: readonly Raw[], given: readonly Raw[] = []): Case {
  return { title, given, batch, replies: [], commits: true }
}
