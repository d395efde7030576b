import { systemClock } from '../base/clock.ts'
import type { ProxyMode } from '../config/config.ts'
import { type FlagReader, type FlagSpec, flags } from '../config/flag.ts'
import { DEFAULT_MODE, MODE_NAMES } from '../config/modes.ts'
import { INSTANCE_FLAG, readInstanceName, whyNotInstance } from '../config/own-flags.ts'
import { type InstanceLock, instanceOf, lockInstance } from '../daemon/instance-lock.ts'
import { systemLock } from '../daemon/network-lock.ts'
import { HERE } from '../daemon/open.ts'
import {
  type IptablesOwner,
  keptTexts,
  type Leftovers,
  type LeftoverText,
  leftoverTexts,
  lookForLeftovers,
  removedTexts,
  removeLeftovers,
} from '../modes/foreign/leftovers.ts'
import { kubeProxyChains } from '../modes/foreign/legacy-iptables.ts'
import { anyMode, findMode, MODES } from '../modes/registry.ts'
import { EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { processesNamed, readLines } from './processes.ts'
import { ownCommand } from './request.ts'

const FLAGS: readonly FlagSpec[] = [
  ...flags({
    '--force': 'run even while kprobe runs here (it will restore everything)',
    '--leftovers-of PROXY':
      "remove the leftovers of another proxy instead of kprobe's objects; the only value is kube-proxy. kprobe may be running, the other proxy must not",
    '--proxy-mode MODE':
      "iptables: also remove the chains of iptables mode. They have the names of kube-proxy's chains, so cleanup keeps them without this flag",
  }),
  INSTANCE_FLAG,
]

export const command = ownCommand({
  name: 'cleanup',
  description:
    "Removes kprobe's objects from the kernel: Services stop working on this node. Safe to run again. Names what\n" +
    'kube-proxy left, and removes it only with --leftovers-of=kube-proxy.',
  details: [
    "kprobe and kube-proxy write the same chains in iptables mode. --proxy-mode=iptables removes these chains and the rules that lead to them from the tables of iptables-nft. kubelet's KUBE-FIREWALL, the tables, and everything that other programs have in them stay. Without the flag, cleanup names the chains that kprobe has recorded as its own. Once they are gone, cleanup restores the value that route_localnet had before kprobe.",
    '',
    "--leftovers-of=kube-proxy removes in one transaction the tables of its nftables mode, and from the tables of iptables-nft its chains (KUBE-SERVICES, KUBE-SVC-*, ...) with the rules that lead to them. Everything else in those tables stays: kubelet's KUBE-FIREWALL, rules of other programs, and chains of kube-proxy that these use. Then cleanup removes the virtual servers and the addresses of kube-ipvs0 that the ipsets of its IPVS mode name, and these ipsets; others stay. cleanup only names legacy iptables chains: `kube-proxy --cleanup` removes them. It also only names chains that kprobe has recorded as its own.",
    '',
    'With --service-proxy-name=NAME, cleanup removes only the objects of that named proxy, its iptables chains included. Without it, the objects of named proxies stay.',
  ],
  flags: FLAGS,
  read,
  run: (extent, io) => (extent.leftovers ? cleanLeftovers(io) : cleanOurs(io, extent)),
})

function read(reader: FlagReader): Extent & { readonly leftovers: boolean } {
  const force = reader.bool('force')
  reader.oneOf('leftovers-of', ['kube-proxy'], 'kube-proxy')
  const mode = reader.given('proxy-mode') ? reader.oneOf('proxy-mode', MODE_NAMES, DEFAULT_MODE) : ''
  const name = readInstanceName(reader)
  if (name !== undefined) refuseBeside(reader, name, mode)
  return { force, mode, name, leftovers: reader.given('leftovers-of') }
}

/** Refuses a mode that a named proxy cannot use, and --leftovers-of, because kube-proxy serves other Services. */
function refuseBeside(reader: FlagReader, name: string, mode: '' | ProxyMode): void {
  const unsupported = whyNotInstance(name, mode === '' ? DEFAULT_MODE : mode)
  if (unsupported !== undefined) reader.fail('--service-proxy-name', unsupported)
  if (reader.given('leftovers-of'))
    reader.fail(
      '--leftovers-of',
      'cannot be combined with --service-proxy-name: kube-proxy serves other Services',
    )
}

interface Extent {
  readonly force: boolean
  /** The name of the proxy; undefined for the unnamed one. */
  readonly name: string | undefined
  /** The value of --proxy-mode; empty without the flag. */
  readonly mode: '' | ProxyMode
}

/** Removes only kprobe's objects. It needs the lock, because a running kprobe would restore them. */
async function cleanOurs(io: Io, { force, mode, name }: Extent): Promise<number> {
  const lock = await lockInstance(
    instanceOf(name),
    systemLock(systemClock, Math.random),
    `pid ${io.processId}${CLEANING}`,
  )
  if (lock.kind === 'busy' && !force) {
    io.err(`kprobe cleanup: ${busyText(lock)}\n`)
    return EXIT_FAILED
  }
  try {
    const gone: string[] = []
    const foreign: string[] = []
    // A named proxy shares its objects with no other program, so that cleanup needs no request by mode.
    for (const each of MODES.filter(
      its => !its.cleanupOnRequest || name !== undefined || its.name === mode,
    )) {
      if (each.cleanupOnRequest && name === undefined) await warnOfKubeProxy(io)
      const cleaned = await each.cleanup({ ...HERE, proxy: name })
      gone.push(...cleaned.removed)
      foreign.push(...cleaned.foreign)
    }
    for (const what of gone) io.out(`removed ${what}\n`)
    const { texts, settled } = name === undefined ? await lookForRest(lock.kind === 'held') : NO_REST
    if (gone.length + settled.length === 0 && !texts.some(isOurs))
      io.out('the kernel holds no objects of kprobe\n')
    for (const line of settled) io.out(`${line}\n`)
    for (const what of foreign) io.out(`left ${what}: it does not belong to kprobe\n`)
    nameLeftovers(io, texts)
  } finally {
    if (lock.kind === 'held') await lock.release()
  }
  return EXIT_FINE
}

interface Rest {
  readonly texts: readonly LeftoverText[]
  /** The outcome for the record of iptables mode, one item a line. */
  readonly settled: readonly string[]
}

const NO_REST: Rest = { texts: [], settled: [] }

/** Settles the record only as the holder of the lock: a running kprobe still uses the record and its settings. */
async function lookForRest(isAlone: boolean): Promise<Rest> {
  const found = await lookAround()
  const kubeProxyRuns = (await processesNamed('kube-proxy')).length > 0
  const texts = leftoverTexts(found, await iptablesOwner(kubeProxyRuns))
  if (!isAlone) return { texts, settled: [] }
  const rest = {
    kubeProxyRuns,
    hasChains: found.iptables.length > 0,
    hasLegacyChains: found.elsewhere.legacyTables.some(
      table => typeof table.chains === 'string' || kubeProxyChains(table).length > 0,
    ),
  }
  const settled: string[] = []
  for (const mode of MODES) settled.push(...((await mode.settleRecord?.(HERE, rest)) ?? []))
  return { texts, settled }
}

/** Finds the owner of the iptables chains, whose names are the same in every proxy. */
async function iptablesOwner(kubeProxyRuns: boolean): Promise<IptablesOwner> {
  const isRecorded = await anyMode(mode => mode.isRecorded?.(HERE))
  return isRecorded && !kubeProxyRuns ? 'kprobe' : 'unknown'
}

function isOurs({ by }: LeftoverText): boolean {
  return by === 'kprobe'
}

/** Warns that a running kube-proxy would write the removed chains again. */
async function warnOfKubeProxy(io: Io): Promise<void> {
  const pids = await processesNamed('kube-proxy')
  if (pids.length === 0) return
  io.err(
    `kprobe cleanup: kube-proxy runs in this network namespace (pid ${pids.join(', ')}); in iptables mode kube-proxy owns these chains and writes them again\n`,
  )
}

/** Suffix of the holder's name while cleanup holds the lock. */
const CLEANING = ' (cleanup)'

function busyText({ holder, of }: Extract<InstanceLock, { kind: 'busy' }>): string {
  if (holder.endsWith(CLEANING)) {
    const who = holder.slice(0, -CLEANING.length)
    return `another cleanup runs in this network namespace (${who}): retry when it has ended, or give --force`
  }
  const who = holder === '' ? '' : ` (${holder})`
  const which = of === 'name' ? '' : ', of another name with the same hash and the same chains,'
  return (
    `another kprobe${which} runs in this network namespace${who} and would restore everything: ` +
    'stop it first, or give --force'
  )
}

/** kprobe's tables have the names of kube-proxy's. */
const TABLE = findMode(DEFAULT_MODE).tableName(undefined) ?? ''

/** Removes only kube-proxy's objects: kprobe may run meanwhile. */
async function cleanLeftovers(io: Io): Promise<number> {
  const owner = await iptablesOwner((await processesNamed('kube-proxy')).length > 0)
  const taken = await removeLeftovers(HERE, TABLE, { iptables: owner !== 'kprobe' })
  const removed = [...removedTexts(taken)]
  // kube-proxy's chains, which refer to its other objects, are already removed.
  for (const mode of MODES)
    removed.push(...((await mode.cleanupKubeProxy?.({ ...HERE, proxy: undefined })) ?? []))
  if (removed.length === 0) io.out('kube-proxy left nothing here that can be removed\n')
  for (const what of removed) io.out(`removed ${what}\n`)
  for (const what of keptTexts(taken)) io.out(`left ${what}\n`)
  nameLeftovers(io, leftoverTexts(await lookAround(), owner))
  return EXIT_FINE
}

async function lookAround(): Promise<Leftovers> {
  const ignoreIpvs = await anyMode(mode => mode.ownsElsewhere?.(HERE))
  return await lookForLeftovers({ ...HERE, tableName: TABLE, readLines, ignoreIpvs })
}

function nameLeftovers(io: Io, texts: readonly LeftoverText[]): void {
  for (const { by, what, command } of texts) io.out(`left by ${by}: ${what} (remove with ${command})\n`)
}
