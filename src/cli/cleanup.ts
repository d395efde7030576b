import { systemClock } from '../base/clock.ts'
import { takeLock } from '../base/instance-lock.ts'
import { type FlagSpec, readArguments } from '../config/flag.ts'
import { FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { lockName, openNetfilter } from '../daemon/open.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../dataplane/nftables/options.ts'
import { createNftablesPlane } from '../dataplane/nftables/plane.ts'
import { createNftClient, type NftClient } from '../kernel/nft/client.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const FORCE: FlagSpec = {
  name: 'force',
  kind: 'bool',
  default: 'false',
  help: 'even while a kprobe is running here (it will put everything back)',
}

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe cleanup [flags]',
      description:
        'Removes what is provably ours from the kernel: Services stop working on this node. Safe to run again.',
      flags: [FORCE, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const given = readArguments(argv, [FORCE], () => undefined)
  const reader = new FlagReader(given)
  for (const argument of given.positionals) reader.fail(quote(argument), 'no such argument')
  const force = reader.bool('force')
  if (reader.errors.length > 0) return usageErrors(io, 'cleanup', reader.errors)
  const lock = await takeLock(lockName(DEFAULT_NFTABLES_OPTIONS), `pid ${io.processId}${CLEANING}`)
  if (lock.kind === 'busy' && !force) {
    io.err(`kprobe cleanup: ${busyText(lock.holder)}\n`)
    return EXIT_FAILED
  }
  try {
    return await remove(io)
  } catch (error) {
    io.err(`kprobe cleanup: ${failureText(error)}\n`)
    return EXIT_FAILED
  } finally {
    if (lock.kind === 'held') await lock.release()
  }
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

async function remove(io: Io): Promise<number> {
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock })
  try {
    const before = await tablesOf(client)
    await createNftablesPlane({ client, options: DEFAULT_NFTABLES_OPTIONS }).cleanup()
    const after = await tablesOf(client)
    const removed = before.filter(table => !after.includes(table))
    if (removed.length === 0) io.out('nothing of ours is in the kernel\n')
    for (const table of removed) io.out(`removed table ${table}\n`)
    for (const table of after) io.out(`left table ${table}, which is not ours\n`)
  } finally {
    await client.close()
  }
  return EXIT_FINE
}

async function tablesOf(client: NftClient): Promise<string[]> {
  const { tableName: name } = DEFAULT_NFTABLES_OPTIONS
  const { ruleset } = await client.list([
    { family: 'ip', name },
    { family: 'ip6', name },
  ])
  return ruleset.tables.map(table => `${table.family} ${table.name}`)
}
