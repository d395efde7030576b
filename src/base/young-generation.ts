import { setFlagsFromString } from 'node:v8'

/**
 * Keeps V8's space for new objects at its first size, 1 MiB. It would grow to 48 MiB, which a load or a crowd of clients fills
 * and later work leaves idle. Called once all code is loaded: Node.js compiles its own modules anew after a change of flags.
 */
export function keepYoungGenerationSmall(): void {
  // Not --max-semi-space-size, because V8 reads that one only before it runs code.
  setFlagsFromString('--semi-space-growth-factor=1')
  // To share so little between threads costs more than it saves.
  setFlagsFromString('--no-parallel-scavenge')
}
