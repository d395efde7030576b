import type { Io } from '../cli/io.ts'

/** Four colors with a meaning. No text relies on its color: pipes and NO_COLOR leave it out. */
const CODES = { good: '32', bad: '31', warning: '33', dim: '2' } as const

export type Tone = keyof typeof CODES

type Paint = (text: string) => string

/** Makes functions that color a text for the terminal of `io`, or leave it as it is. */
export function paletteOf({ color }: Pick<Io, 'color'>): Readonly<Record<Tone, Paint>> {
  const paint =
    (tone: Tone): Paint =>
    text =>
      color && text !== '' ? `\u001b[${CODES[tone]}m${text}\u001b[0m` : text
  return { good: paint('good'), bad: paint('bad'), warning: paint('warning'), dim: paint('dim') }
}
