// Which test files are for the guest.
import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const HERE = fileURLToPath(new URL('.', import.meta.url))
/** Of the nftables mode, against an older kernel. */
const NFTABLES = ['test/contract/kernel.test.ts', 'test/contract/kernel-print.test.ts']

/** Paths from the top folder. */
export function testsForGuest() {
  const here = readdirSync(HERE, { recursive: true }).filter(name => name.endsWith('.test.ts'))
  return [...NFTABLES, ...here.sort().map(name => `test/vm/${name}`)]
}
