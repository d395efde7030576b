import type { Mode } from '../modes/mode.ts'
import { MODES } from '../modes/registry.ts'

/** Tests whether `ask` gives true for any mode. */
export async function anyMode(ask: (mode: Mode) => Promise<boolean> | undefined): Promise<boolean> {
  for (const mode of MODES) if ((await ask(mode)) === true) return true
  return false
}
