// Which test files are for the guest.
import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const TEST = fileURLToPath(new URL('..', import.meta.url))
/** What our kernel clients do, on an older kernel than that of this machine. */
const OLDER_KERNEL = [
  ...filesIn('contract').filter(file => /\/kernel[^/]*$/.test(file)),
  'test/kernel/doctor.test.ts',
  'test/kernel/nft-monitor.test.ts',
]

/** Paths from the top folder. */
export function testsForGuest() {
  return [...OLDER_KERNEL, ...filesIn('vm')]
}

function filesIn(folder) {
  const names = readdirSync(TEST + folder, { recursive: true }).filter(name => name.endsWith('.test.ts'))
  return names.sort().map(name => `test/${folder}/${name}`)
}
