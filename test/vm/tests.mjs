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

/** Runs a part of its scenarios in the core, and the others in the rest. */
const SCENARIOS = 'test/vm/scenarios-ipvs.test.ts'

/**
 * What a change breaks first: nftables and IPVS clients on the older kernel, the rules of IPVS mode as packets see them, and
 * its commands. The others are about one thing each, or have run on the kernel of this machine, and take several times as long.
 */
const CORE = new Set([
  'test/contract/kernel.test.ts',
  'test/vm/ipvs-contract.test.ts',
  SCENARIOS,
  'test/vm/commands-ipvs.test.ts',
])

/** Paths from the top folder: all of them, or those of one part. */
export function testsForGuest({ core = false, rest = false } = {}) {
  const all = [...OLDER_KERNEL, ...filesIn('vm')]
  return core === rest ? all : all.filter(file => CORE.has(file) === core || file === SCENARIOS)
}

function filesIn(folder) {
  const names = readdirSync(TEST + folder, { recursive: true }).filter(name => name.endsWith('.test.ts'))
  return names.sort().map(name => `test/${folder}/${name}`)
}
