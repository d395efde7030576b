/** One thing that was checked. */
export interface Finding {
  readonly kind: 'ok' | 'missing' | 'damaged' | 'warning' | 'note'
  readonly subject: string
  readonly text: string
}

/** Gives the text of a file of /proc or /sys; undefined when it does not exist or cannot be read. */
export type ReadText = (path: string) => Promise<string | undefined>
