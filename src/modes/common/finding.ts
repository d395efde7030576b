/** One thing that was looked at. */
export interface Finding {
  readonly kind: 'ok' | 'missing' | 'damaged' | 'warning' | 'note'
  readonly subject: string
  readonly text: string
}

/** Gives the text of a file of /proc or /sys; undefined when it does not exist or may not be read. */
export type ReadText = (path: string) => Promise<string | undefined>
