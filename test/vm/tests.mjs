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

/**
 * What a change breaks first: each netlink client on the older kernel, the rules of IPVS mode as packets see them, and its
 * commands. The others are about one thing each, and take as long again.
 */
const CORE = new Set([
  'test/contract/kernel.test.ts',
  'test/contract/kernel-ipset.test.ts',
  'test/contract/kernel-xt-tables.test.ts',
  'test/vm/ipvs-contract.test.ts',
  'test/vm/link-contract.test.ts',
  'test/vm/scenarios-ipvs.test.ts',
  'test/vm/commands-ipvs.test.ts',
])

/** Paths from the top folder: all of them, or those of one part. */
export function testsForGuest({ core = false, rest = false } = {}) {
  const all = [...OLDER_KERNEL, ...filesIn('vm')]
  return core === rest ? all : all.filter(file => CORE.has(file) === core)
}

function filesIn(folder) {
  const names = readdirSync(TEST + folder, { recursive: true }).filter(name => name.endsWith('.test.ts'))
  return names.sort().map(name => `test/${folder}/${name}`)
}
