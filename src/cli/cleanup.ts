import { systemClock } from '../base/clock.ts'
import { takeLock } from '../base/instance-lock.ts'
import { type FlagSpec, readArguments } from '../config/flag.ts'
import { FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { LOCK_NAME } from '../daemon/open.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../dataplane/nftables/options.ts'
import { ipvsRemovedTexts, isIpvsOurs, removeIpvs } from './cleanup-ipvs.ts'
import { removeLeftovers, removeOurs } from './cleanup-steps.ts'
import { readLines } from './doctor.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { lookForLeftovers } from './leftovers.ts'
import { keptTexts, leftoverTexts, remainsText, removedTexts } from './leftovers-text.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const FORCE: FlagSpec = {
  name: 'force',
  kind: 'bool',
  default: 'false',
  help: 'even while a kprobe is running here (it will put everything back)',
}
const LEFTOVERS_OF: FlagSpec = {
  name: 'leftovers-of',
  kind: 'text',
  placeholder: 'PROXY',
  default: '',
  help:
    'remove what another proxy has left, instead of what is ours; the only one that is known is kube-proxy. ' +
    'A kprobe may be running, the other proxy must not',
}
const FLAGS: readonly FlagSpec[] = [FORCE, LEFTOVERS_OF]
const { tableName } = DEFAULT_NFTABLES_OPTIONS

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe cleanup [flags]',
      description:
        'Removes what is provably ours from the kernel: Services stop working on this node. Safe to run again.\n' +
        'What kube-proxy has left is named, and removed only when told: --leftovers-of=kube-proxy.',
      details: [
        'Of kube-proxy, that flag removes in one transaction the tables of its nftables mode, and out of the tables of',
        'iptables-nft its chains (KUBE-SERVICES, KUBE-SVC-*, ...) with the rules that lead to them. Everything else in',
        "those tables stays: kubelet's KUBE-FIREWALL, others' rules, and chains of kube-proxy that others use. Then go the",
        'virtual servers and the addresses of kube-ipvs0 that the ipsets of its IPVS mode name, and these ipsets; others',
        'stay. Legacy iptables is named only: `kube-proxy --cleanup` removes that.',
      ],
      flags: [...FLAGS, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const given = readArguments(argv, FLAGS, () => undefined)
  const reader = new FlagReader(given)
  for (const argument of given.positionals) reader.fail(quote(argument), 'no such argument')
  const force = reader.bool('force')
  reader.oneOf('leftovers-of', ['kube-proxy'], 'kube-proxy')
  if (reader.errors.length > 0) return usageErrors(io, 'cleanup', reader.errors)
  try {
    return reader.given('leftovers-of') ? await cleanLeftovers(io) : await cleanOurs(io, force)
  } catch (error) {
    io.err(`kprobe cleanup: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

/** Our tables only, which a kprobe that runs would make anew. */
async function cleanOurs(io: Io, force: boolean): Promise<number> {
  const lock = await takeLock(LOCK_NAME, `pid ${io.processId}${CLEANING}`)
  if (lock.kind === 'busy' && !force) {
    io.err(`kprobe cleanup: ${busyText(lock.holder)}\n`)
    return EXIT_FAILED
  }
  try {
    const { removed, foreign, remains } = await removeOurs(systemClock, tableName)
    const ofIpvs = await removeIpvs('kprobe')
    if (removed.length + remains.length === 0 && ofIpvs === undefined)
      io.out('nothing of ours is in the kernel\n')
    for (const table of removed) io.out(`removed table ${table}\n`)
    for (const each of remains) io.out(`removed ${remainsText(each)}\n`)
    for (const what of ofIpvs === undefined ? [] : ipvsRemovedTexts(ofIpvs)) io.out(`removed ${what}\n`)
    for (const table of foreign) io.out(`left table ${table}, which is not ours\n`)
    await nameLeftovers(io)
  } finally {
    if (lock.kind === 'held') await lock.release()
  }
  return EXIT_FINE
}

/** What a cleanup adds to its name as the holder of the lock. */
const CLEANING = ' (cleanup)'

function busyText(holder: string): string {
  if (holder.endsWith(CLEANING)) {
    const who = holder.slice(0, -CLEANING.length)
    return `another cleanup is at work in this network namespace (${who}): try again when it has ended, or give --force`
  }
  const who = holder === '' ? '' : ` (${holder})`
  return (
    `a kprobe is running in this network namespace${who} and would put everything back: ` +
    'stop it first, or give --force'
  )
}

/** kube-proxy's only: a kprobe may run meanwhile. */
async function cleanLeftovers(io: Io): Promise<number> {
  const taken = await removeLeftovers(systemClock, tableName)
  // Its chains, which refer to the ipsets, are gone by now.
  const ofIpvs = await removeIpvs('kube-proxy')
  const removed = [...removedTexts(taken), ...(ofIpvs === undefined ? [] : ipvsRemovedTexts(ofIpvs))]
  if (removed.length === 0) io.out('nothing that kube-proxy left can be removed here\n')
  for (const what of removed) io.out(`removed ${what}\n`)
  for (const what of keptTexts(taken)) io.out(`left ${what}\n`)
  await nameLeftovers(io)
  return EXIT_FINE
}

async function nameLeftovers(io: Io): Promise<void> {
  const found = await lookForLeftovers({ tableName, readLines, ignoreIpvs: await isIpvsOurs() })
  for (const { what, command } of leftoverTexts(found))
    io.out(`left by kube-proxy: ${what} (remove with ${command})\n`)
}
