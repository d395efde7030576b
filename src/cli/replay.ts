import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { readFile, readlink } from 'node:fs/promises'
import { createServer } from 'node:net'
import { buildInfo, buildText } from '../base/build-info.ts'
import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/errors.ts'
import { formatIp, type Ip } from '../base/ip.ts'
import { listAt } from '../base/plain-data.ts'
import { count, oneLine } from '../base/text.ts'
import { quote } from '../config/flag.ts'
import { MODE_NAMES } from '../config/modes.ts'
import { networkNamespace } from '../daemon/instance-lock.ts'
import { KERNEL, openNetfilter, withNetfilter } from '../daemon/open.ts'
import { IpsetClient } from '../kernel/ipset/client.ts'
import type { Ipset, IpsetOperation } from '../kernel/ipset/state.ts'
import { createIpvsClient } from '../kernel/ipvs/client.ts'
import type { HeldIpset, HeldServer, IpvsOperation } from '../kernel/ipvs/state.ts'
import { DummyClient } from '../kernel/link/dummy.ts'
import { NfacctClient } from '../kernel/nfacct/client.ts'
import { accountsIn, loadRaw, readRaw } from '../kernel/nft/raw.ts'
import { SYSCTLS, writeSysctl } from '../kernel/sysctl/sysctls.ts'
import { isJson } from '../model/fields.ts'
import { findMode, MODE_DEVICE } from '../modes/registry.ts'
import {
  type Bundle,
  FILE_BYTES_MAX,
  type HeldListener,
  type OutsideFile,
  openBundle,
  outsideIn,
  RULES_FILE,
  recordIn,
  withDaemon,
} from './bundle.ts'
import { type Command, EXIT_FINE, type Io, lent } from './io.ts'
import { behindDashes, ownCommand } from './request.ts'

/** The commands that ask a daemon and the kernel, both of which a bundle stands for. */
const COMMANDS: Readonly<Record<string, () => Promise<{ readonly command: Command }>>> = {
  dump: () => import('./dump.ts'),
  explain: async () => ({ command: (await import('./why.ts')).explainCommand }),
  plan: () => import('./plan.ts'),
  verify: () => import('./verify.ts'),
  why: () => import('./why.ts'),
}

export const command = behindDashes(([name, ...rest]) =>
  ownCommand({
    name: 'replay',
    usage: 'FILE [flags] [-- COMMAND [flags]]',
    description:
      'Loads a file of `kprobe debug bundle` into a private network namespace, and runs a command there as on the node:\n' +
      'the objects are those of its daemon, and the rules are those of its kernel, damage included. Names what this kernel\n' +
      'rejects. Writes rules: it refuses to run in the network namespace of the machine, and in one that is in use.',
    details: [
      `Commands: ${Object.keys(COMMANDS).join(', ')}. Without one, it says what is in the bundle.`,
      '',
      'Example:',
      '  unshare -Urn kprobe replay FILE -- why --from pod/shop/cart-1 --to svc/shop/checkout',
      '  unshare -Urn kprobe replay FILE -- dump all',
    ],
    flags: [],
    takesArguments: true,
    read(reader) {
      const [path, ...more] = reader.positionals
      if (path === undefined) reader.fail('FILE', 'is missing: the file of `kprobe debug bundle`')
      for (const argument of more) reader.fail(quote(argument), 'no such argument; a command comes behind --')
      if (name !== undefined && !Object.hasOwn(COMMANDS, name))
        reader.fail(quote(name), `no command for a bundle; there are ${Object.keys(COMMANDS).join(', ')}`)
      return path === undefined ? undefined : { path }
    },
    run: async ({ path }, io) => await replay(await openBundle(path), { name, rest }, io),
  }),
)

interface Replayed {
  readonly name: string | undefined
  readonly rest: readonly string[]
}

async function replay(bundle: Bundle, { name, rest }: Replayed, io: Io): Promise<number> {
  if (name === undefined) {
    io.out(summaryOf(bundle))
    return EXIT_FINE
  }
  await requirePrivate()
  for (const notice of [
    ...noticesOf(bundle),
    ...(await applySettings(bundle)),
    ...(await loadKernel(bundle)),
  ])
    io.err(`kprobe replay: ${oneLine(notice)}\n`)
  // The kernel alone says what dump prints.
  if (name === 'dump' && !bundle.files.has('config.json')) return await runCommand(name, rest, io)
  return await withDaemon(bundle, { io, remedy: 'only dump needs none' }, socket =>
    runCommand(name, [...rest, `--admin-socket=${socket}`], io),
  )
}

async function runCommand(name: string, argv: readonly string[], io: Io): Promise<number> {
  const load = COMMANDS[name]
  if (load === undefined) throw new Error(`no command ${name}`)
  return await (await load()).command.run(argv, io)
}

function summaryOf({ manifest }: Bundle): string {
  const { kprobe, daemon, created, node, kernel, redacted } = manifest
  const lines = [
    `bundle of node ${String(node)}, ${String(created)}${redacted === true ? ', names renamed' : ''}`,
    `written by kprobe ${String(kprobe)}; daemon: ${String(daemon)}; kernel ${String(kernel)}`,
    ...listAt(manifest, 'notes').map(note => `note: ${String(note)}`),
    ...itemsAt(manifest, 'files').map(
      ({ name, bytes, about }) => `  ${String(name)}, ${String(bytes)} bytes: ${String(about)}`,
    ),
    ...itemsAt(manifest, 'missing').map(({ name, why }) => `  missing ${String(name)}: ${String(why)}`),
  ]
  return lines.map(line => `${oneLine(line)}\n`).join('')
}

function itemsAt(manifest: Bundle['manifest'], field: string) {
  return listAt(manifest, field).filter(isJson)
}

/** Devices that a new network namespace has, all of them down. */
const FRESH_DEVICES = /^(?:lo|tunl0|sit0|gre0|gretap0|erspan0|ip_vti0|ip6_vti0|ip6tnl0|ip6gre0)$/
const HOW = 'run it in a private namespace: `unshare -Urn kprobe replay ...`'

/** Throws where rules could meet real packets. */
async function requirePrivate(): Promise<void> {
  const first = await readlink('/proc/1/ns/net').catch(() => undefined)
  if (first !== undefined && first === (await networkNamespace()))
    throw new Error(`refusing to write rules into the network namespace of the host; ${HOW}`)
  const devices = (await readFile('/proc/self/net/dev', 'utf8')).split('\n').slice(2)
  const used = devices
    .map(line => line.split(':')[0]?.trim() ?? '')
    .find(device => device !== '' && !FRESH_DEVICES.test(device))
  if (used !== undefined)
    throw new Error(`this network namespace is in use: it has the device ${used}; ${HOW}`)
  await withNetfilter(async connection => {
    const { bytes } = await readRaw({ connection, clock: systemClock, bytesMax: FILE_BYTES_MAX })
    if (bytes.length > 0)
      throw new Error(`this network namespace is in use: it has rules of nf_tables; ${HOW}`)
  })
}

/** What a reader of the answers has to know. */
function noticesOf(bundle: Bundle): readonly string[] {
  const { manifest } = bundle
  const ours = buildText(buildInfo())
  const { kprobe } = manifest
  return [
    ...(kprobe === ours
      ? []
      : [
          `the bundle is of kprobe ${String(kprobe)}, and this is ${ours}: answers may differ from those on the node`,
        ]),
    ...listAt(manifest, 'notes').map(String),
  ]
}

/** Loads what modes other than nftables have in the kernel, and the rules. Gives what the kernel did not take. */
async function loadKernel(bundle: Bundle): Promise<readonly string[]> {
  const { flags } = recordIn(bundle, 'config.json')
  const name = isJson(flags) ? String(flags['proxy-mode']) : ''
  const mode = MODE_NAMES.includes(name) ? findMode(name) : undefined
  const file = outsideIn(bundle)
  const usesIpvs = mode?.device !== undefined
  return [
    ...(usesIpvs && file.ipvs === undefined
      ? [`not loaded: the bundle has no state of IPVS and ipsets: ${file.lacking}`]
      : []),
    ...(await loadOutside(file)),
    ...(await loadRules(bundle)),
    ...(mode?.forwards === true ? await openListeners(file.listeners) : []),
  ]
}

/** Settings that decide about packets, without which the commands answer for another node. */
const APPLIED: readonly string[] = [
  SYSCTLS.tcpBeLiberal.path,
  'proc/sys/net/ipv4/ip_forward',
  'proc/sys/net/ipv6/conf/all/forwarding',
]

/** Applies the settings of the bundle. Gives why that failed. */
async function applySettings(bundle: Bundle): Promise<readonly string[]> {
  const failed: string[] = []
  for (const path of APPLIED) {
    const value = recordIn(bundle, 'sysctls.json')[path.replace(/^proc\//, '')]
    if (typeof value !== 'string' || !/^[01]$/.test(value)) continue
    const error = await writeSysctl(`/${path}`, Number(value))
    if (error !== undefined) failed.push(`not set: ${path} = ${value}: ${error.message}`)
  }
  return failed
}

/** Objects that the kernel does not take and that are named; more are counted. */
const UNLOADED_SHOWN = 10

/** Loads the rules. Gives what the kernel did not take. */
async function loadRules({ files }: Bundle): Promise<readonly string[]> {
  const bytes = files.get(RULES_FILE)
  if (bytes === undefined) return ['not loaded: the bundle has no nf_tables.bin']
  await makeAccounts(accountsIn(bytes))
  return await withNetfilter(async connection => {
    const unloaded = await loadRaw(bytes, { connection, clock: systemClock })
    const more = unloaded.length - UNLOADED_SHOWN
    return [
      ...unloaded.slice(0, UNLOADED_SHOWN).map(({ object, reason }) => `not loaded: ${object}: ${reason}`),
      ...(more > 0 ? [`not loaded: ${count(more, 'more object')}`] : []),
    ]
  })
}

/** Makes counters that rules refer to. A kernel without them says so of these rules. */
async function makeAccounts(names: ReadonlySet<string>): Promise<void> {
  const client = new NfacctClient({ transport: openNetfilter(), clock: systemClock })
  await lent(client, () => {
    for (const name of names) client.ensure(name)
  })
}

/**
 * Loads what a bundle has beside nf_tables: ipsets, which rules refer to, then addresses and virtual servers of IPVS.
 * Gives what this kernel did not take.
 */
async function loadOutside(file: OutsideFile): Promise<readonly string[]> {
  const { ipvs, ownAddresses } = file
  if (ipvs === undefined) return []
  const { ipsets, servers, addresses } = ipvs
  const own = new Set(ownAddresses)
  const bound = addresses.filter(ip => !own.has(ip))
  return [
    ...(await loaded(count(ipsets.length, 'ipset'), 'ipset.txt', () => loadSets(file, ipsets))),
    ...(await loaded(`${bound.length} addresses of ${MODE_DEVICE}`, 'kernel.json', () =>
      loadAddresses(bound),
    )),
    ...(await loaded(count(servers.length, 'virtual server'), 'ipvs.txt', () => loadServers(servers))),
  ]
}

/** Gives one sentence for objects that failed, of which `load` gives the errors. */
async function loaded(
  what: string,
  file: string,
  load: () => Promise<readonly Error[]>,
): Promise<readonly string[]> {
  let errors: readonly unknown[]
  try {
    errors = await load()
  } catch (error) {
    errors = [error]
  }
  const [first] = errors
  if (first === undefined) return []
  const more = errors.length > 1 ? ` (and ${count(errors.length - 1, 'more error')})` : ''
  return [`not loaded: ${what}: ${failureText(first)}${more}; ${file} of the bundle has them`]
}

/** Bounds the numbers of ipsets that a bundle can ask for. */
const NUMBERS_MAX = 4_096
const filler = (number: number): Ipset => ({
  name: `kprobe-replay-${number}`,
  type: 'hash:ip',
  family: 'IPv4',
  maxElements: 1,
  hashSize: 1,
})

/** Makes sets with the numbers that they had: rules refer to a set by its number, and the kernel gives the lowest free one. */
async function loadSets({ names }: OutsideFile, held: readonly HeldIpset[]): Promise<readonly Error[]> {
  const byName = new Map(held.map(({ set }) => [set.name, set]))
  const last = Math.max(-1, ...[...names.keys()].filter(number => number < NUMBERS_MAX))
  const made = Array.from({ length: last + 1 }, (_, at) => byName.get(names.get(at) ?? '') ?? filler(at))
  const rest = held.map(({ set }) => set).filter(set => !made.includes(set))
  const operations: readonly IpsetOperation[] = [
    ...[...made, ...rest].map(set => ({ verb: 'create', set }) as const),
    ...made.filter(({ name }) => !byName.has(name)).map(({ name }) => ({ verb: 'destroy', name }) as const),
    ...held.map(({ set, entries }) => {
      const groups = entries.map(() => '')
      return { verb: 'add-entries', set, entries, groups } as const
    }),
  ]
  if (operations.length === 0) return []
  const client = new IpsetClient({ transport: KERNEL.netfilter(), clock: systemClock })
  return errorsOf(await lent(client, () => client.commit(operations)))
}

interface Answers {
  readonly unknown: Error | undefined
  readonly failures: readonly { readonly error: Error }[]
}

function errorsOf({ unknown, failures }: Answers): readonly Error[] {
  return [...failures.map(({ error }) => error), ...(unknown === undefined ? [] : [unknown])]
}

async function loadAddresses(ips: readonly Ip[]): Promise<readonly Error[]> {
  const device = MODE_DEVICE
  if (ips.length === 0 || device === undefined) return []
  const client = new DummyClient({ transport: KERNEL.route(), clock: systemClock })
  return await lent(client, async () => {
    client.ensure(device)
    return errorsOf(await client.commit(device, { add: ips, remove: [] }))
  })
}

async function loadServers(servers: readonly HeldServer[]): Promise<readonly Error[]> {
  if (servers.length === 0) return []
  const client = createIpvsClient({ transport: KERNEL.generic(), clock: systemClock })
  const operations = servers.flatMap(({ server, destinations }): readonly IpvsOperation[] => [
    { verb: 'set-server', group: '', server, isNew: true },
    // The kernel lists the one first that was added last.
    ...[...destinations]
      .reverse()
      .map(
        destination => ({ verb: 'set-destination', group: '', server, destination, isNew: true }) as const,
      ),
  ])
  return errorsOf(await lent(client, () => client.commit(operations)))
}

/** A bundle with more makes a replay slow; `dump` says of the others that no process listens. */
const LISTENERS_MAX = 10_000

/** Listens where processes of the node did, while the command runs. Nobody connects: the namespace has no device that is up. */
async function openListeners(listeners: readonly HeldListener[]): Promise<readonly string[]> {
  if (listeners.length === 0) return []
  for (const family of ['ipv4', 'ipv6']) await writeSysctl(`/proc/sys/net/${family}/ip_nonlocal_bind`, 1)
  const failed: unknown[] = []
  for (const listener of listeners.slice(0, LISTENERS_MAX))
    await listen(listener).catch(error => failed.push(error))
  const [first] = failed
  const over = listeners.length - LISTENERS_MAX
  return [
    ...(first === undefined
      ? []
      : [`not opened: ${count(failed.length, 'listener')}: ${failureText(first)}`]),
    ...(over > 0 ? [`not opened: ${count(over, 'more listener')}`] : []),
  ]
}

/** Listens at a place until the process ends, and does not keep it. */
async function listen({ protocol, ip, port }: HeldListener): Promise<void> {
  const host = formatIp(ip)
  if (protocol === 'TCP') {
    const server = createServer().listen({ host, port, ipv6Only: true }).unref()
    await once(server, 'listening')
  } else {
    const type = ip.length === 4 ? 'udp4' : 'udp6'
    const socket = createSocket({ type, ipv6Only: type === 'udp6' }).unref()
    socket.bind(port, host)
    await once(socket, 'listening')
  }
}
