import { randomBytes } from 'node:crypto'
import { open } from 'node:fs/promises'
import { buildInfo, buildText } from '../../base/build-info.ts'
import { finishInSlices, slicingOf, systemClock } from '../../base/clock.ts'
import { failureText } from '../../base/errors.ts'
import { bytesText, count, oneLine, rfc3339 } from '../../base/text.ts'
import { type Command, EXIT_FINE, type Io, lent, readText } from '../../cli/io.ts'
import { failWord, orFailed, ownCommand } from '../../cli/request.ts'
import { type FlagReader, type FlagSpec, flags, quote } from '../../config/flag.ts'
import { MODEL_SOCKET_FLAG } from '../../config/flags.ts'
import {
  defaultAdminSocket,
  INSTANCE_FLAG,
  readInstanceName,
  readSocketPath,
} from '../../config/own-flags.ts'
import { networkNamespace } from '../../daemon/instance-lock.ts'
import { withNetfilter } from '../../daemon/open.ts'
import { readSnapshotJson } from '../../daemon/saved/snapshot-json.ts'
import { listAllTables } from '../../kernel/nft/list.ts'
import { printTables } from '../../kernel/nft/print.ts'
import { SYSCTLS } from '../../kernel/sysctl/sysctls.ts'
import { isJson } from '../../model/fields.ts'
import { MODES } from '../../modes/registry.ts'
import { demandAnswer, versionIn } from '../admin-client.ts'
import {
  BUNDLE_BYTES_MAX,
  type BundleContent,
  type BundleFile,
  encodeBundle,
  FILE_BYTES_MAX,
  type Missing,
  OBJECTS_FILE,
  RULES_FILE,
  writeBundle,
} from '../bundle-file.ts'
import { manifestsOf } from './manifests.ts'
import { redacted } from './redaction.ts'

const FLAGS: readonly FlagSpec[] = [
  ...flags({
    '-o, --output FILE':
      'file to write, or - for standard output; unset: kprobe-bundle-NODE-TIME.tar.gz in the current folder',
    '--redact':
      'rename namespaces, Services, EndpointSlices, ServiceCIDRs, pods, nodes and zones, in every file alike; addresses, ports and their names stay, because verdicts follow from them',
    '--log-file FILE': 'file with the log of the daemon; its last 4 MiB go into the bundle',
  }),
  MODEL_SOCKET_FLAG,
  INSTANCE_FLAG,
]

export const command = ownCommand({
  name: 'debug',
  usage: 'bundle [-o FILE] [flags]',
  description:
    'Writes one file for a bug report: objects and history of the daemon, kernel state, findings of doctor. Other commands\n' +
    'read its objects with --source=file:kprobe-bundle/objects.json. Without a daemon, it has the kernel state alone.\n' +
    'Changes nothing.',
  details: [
    'In it:',
    '  manifest.json lists the files in the bundle, the missing ones, and why. The command reads no secrets, and omits labels and annotations except the settings that kprobe reads from them.',
    `  At most ${bytesText(FILE_BYTES_MAX)} a file and ${bytesText(BUNDLE_BYTES_MAX)} in all, unpacked.`,
    '',
    'Examples:',
    '  kprobe debug bundle --redact --log-file=kprobe.log',
    '  kubectl -n kube-system exec POD -c kprobe -- kprobe debug bundle -o - > bundle.tar.gz',
  ],
  flags: FLAGS,
  takesArguments: true,
  read,
  run: (request, io) => orFailed(io, 'debug bundle', () => writeAll(request, io)),
})

type Request = ReturnType<typeof read>

function read(reader: FlagReader, io: Io) {
  const [what, ...more] = reader.positionals
  if (what !== 'bundle') failWord(reader, 'COMMAND', what, 'there is bundle: `kprobe debug bundle`')
  for (const argument of more) reader.fail(quote(argument), 'no such argument')
  const given = reader.text('output')
  // A rename would replace the device, and the report would follow the bundle on the same stream.
  const output = given === '/dev/stdout' ? '-' : given
  if (output === '' || output?.endsWith('/') === true)
    reader.fail('--output', `${quote(output)} names no file`)
  if (output === '-' && io.terminal)
    reader.fail('--output', 'standard output is a terminal: write to a file, or into a pipe')
  const proxy = readInstanceName(reader)
  return {
    output,
    proxy,
    socket: readSocketPath(reader) || defaultAdminSocket(proxy),
    isGiven: reader.given('admin-socket'),
    redact: reader.bool('redact'),
    logFile: reader.text('log-file'),
  }
}

async function writeAll({ output, redact, ...rest }: Request, io: Io): Promise<number> {
  const progress = (doing: string) => io.terminal && io.err(`${doing} ...\n`)
  const all = await gather({ ...rest, io, progress })
  if (redact) progress('renaming')
  const content = await withObjects(redact ? redacted(all, randomBytes(32)) : all)
  progress('compressing')
  const { bytes, missing } = encodeBundle(content)
  if (io.signal.aborted) throw new Error('interrupted')
  const path = output ?? defaultPath(all, redact)
  if (path === '-') io.outBytes(bytes)
  else await writeBundle(path, bytes, io.processId)
  const place = path === '-' ? 'to standard output' : oneLine(path)
  const report = `wrote ${place}: ${bytesText(bytes.length)}${redact ? `, ${namesText(content)}` : ''}\n`
  if (path === '-') io.err(report)
  else io.out(report)
  for (const { name, why } of missing) io.err(`missing ${oneLine(`${name}: ${why}`)}\n`)
  const has = (name: string) => content.files.some(file => file.name === name && file.data.length > 1)
  if (has(RULES_FILE) || has(SNAPSHOT_FILE)) return EXIT_FINE
  throw new Error(
    'the bundle has neither the objects of a daemon nor rules of the kernel: run the command as root on the node, or in the pod of kprobe',
  )
}

function namesText({ facts }: BundleContent): string {
  const { names } = facts
  return typeof names === 'number' ? `${count(names, 'name')} renamed` : 'renamed'
}

/** The name of the node is no part of a redacted bundle's. */
function defaultPath({ facts }: BundleContent, isRedacted: boolean): string {
  const time = rfc3339(Date.now()).replaceAll(/[-:]/g, '')
  const node = typeof facts.node === 'string' ? facts.node.replaceAll(/[^\w.-]/g, '') : ''
  return `kprobe-bundle-${isRedacted || node === '' ? '' : `${node}-`}${time}.tar.gz`
}

interface Gathering {
  readonly io: Io
  readonly socket: string
  /** The user has named the socket: a bundle without the daemon is not what was asked for. */
  readonly isGiven: boolean
  readonly proxy: string | undefined
  readonly logFile: string | undefined
  readonly progress: (doing: string) => void
}

const SNAPSHOT_FILE = 'snapshot.json'

const PAGES = [
  { page: 'config', about: 'version and settings with which other commands compute the same state' },
  { page: 'snapshot', about: 'the objects as the daemon has parsed them, without labels and annotations' },
  { page: 'state', about: 'ports, frontends, endpoints and refusals of each Service' },
  { page: 'receipts', about: 'the last commits to the kernel' },
  { page: 'plan', about: 'the changes that the daemon would make now' },
  { page: 'debug', about: 'the written configuration, health and metrics' },
] as const

/** Collects everything. What cannot be had is named, with the reason. */
async function gather(gathering: Gathering): Promise<BundleContent> {
  const draft = new Draft(gathering)
  const { io, socket, proxy, logFile } = gathering
  const config = await addPages(draft, gathering)
  const flags = isJson(config.flags) ? config.flags : {}
  await draft.add(RULES_FILE, 'the nf_tables rules of all programs', readRules)
  const ofProxy = proxy === undefined ? [] : [`--service-proxy-name=${proxy}`]
  const dump = async () => (await import('../check/dump.ts')).command
  const doctor = async () => (await import('../check/doctor.ts')).command
  const json = ['services', '-o', 'json', ...ofProxy]
  await draft.command('dump.json', 'kprobe dump -o json', { load: dump, argv: json })
  await draft.command('dump.txt', 'kprobe dump all', { load: dump, argv: ['all', ...ofProxy] })
  const doctorFlags = Object.entries(flags).flatMap(([flag, text]) =>
    text === '' ? [] : [`--${flag}=${text}`],
  )
  const doctorArgv = doctorFlags.length === 0 ? ofProxy : doctorFlags
  await draft.command('doctor.txt', 'kprobe doctor', { load: doctor, argv: doctorArgv })
  for (const { what, saveFormat: format } of OBJECTS)
    await draft.command(`${what}.txt`, `kprobe dump ${what} -o ${format}`, {
      load: dump,
      argv: [what, '-o', format],
      isUnnamedOnly: true,
    })
  await draft.add('sysctls.json', 'kernel settings that Services depend on', readSettings)
  await draft.add('log.txt', 'the end of the log of the daemon', () => readLog(logFile))
  const node = typeof flags['hostname-override'] === 'string' ? flags['hostname-override'] : io.hostName
  const notes = await notesOf(config)
  return {
    facts: {
      kprobe: buildText(buildInfo()),
      daemon: typeof config.version === 'string' ? config.version : `none at ${socket}`,
      created: rfc3339(Date.now()),
      node,
      host: io.hostName,
      kernel: (await readText('/proc/sys/kernel/osrelease')) ?? 'unknown',
      runtime: `node ${process.version} ${process.platform}/${process.arch}`,
      redacted: false,
      notes,
    },
    files: draft.files,
    missing: draft.missing,
  }
}

/** Objects that other tools list as well, in their format. */
const OBJECTS = MODES.flatMap(({ dumps = [] }) => dumps)

async function addPages(
  draft: Draft,
  { socket, isGiven }: Gathering,
): Promise<Readonly<Record<string, unknown>>> {
  let config: unknown
  for (const { page, about } of PAGES) {
    const name = `${page}.json`
    await draft.add(name, about, async () => {
      const answer = await demandAnswer(socket, `/${page}`)
      if (page === 'config') {
        versionIn(answer, socket)
        config = answer
      }
      return JSON.stringify(answer)
    })
    const [missing] = draft.missing
    if (isGiven && missing !== undefined && page === 'config') throw new Error(missing.why)
  }
  return isJson(config) ? config : {}
}

async function readRules(): Promise<string> {
  return await withNetfilter(async connection => {
    const { value: tables } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
    return `${[...printTables(tables)].join('\n')}\n`
  })
}

/**
 * Adds the objects of the daemon as manifests, made from the possibly renamed /snapshot in the bundle. A snapshot that
 * this version cannot read costs the bundle its manifests alone.
 */
export async function withObjects(content: BundleContent): Promise<BundleContent> {
  const snapshot = content.files.find(({ name }) => name === SNAPSHOT_FILE)
  if (snapshot === undefined) return content
  try {
    const about = 'the same objects as manifests: kprobe run --source=file:objects.json reads them'
    const data = await objectsIn(snapshot.data)
    return { ...content, files: [{ name: OBJECTS_FILE, about, data }, ...content.files] }
  } catch (error) {
    return { ...content, missing: [...content.missing, { name: OBJECTS_FILE, why: failureText(error) }] }
  }
}

async function objectsIn(snapshot: Buffer): Promise<Buffer> {
  const steps = readSnapshotJson(JSON.parse(snapshot.toString('utf8')))
  return Buffer.from(JSON.stringify(manifestsOf(await finishInSlices(steps, slicingOf(systemClock)))))
}

/** Settings and counts of the kernel, as their paths below /proc. */
const SETTINGS: readonly string[] = [
  'sys/net/ipv4/ip_forward',
  'sys/net/ipv6/conf/all/forwarding',
  'sys/net/bridge/bridge-nf-call-iptables',
  'sys/net/bridge/bridge-nf-call-ip6tables',
  'sys/net/ipv4/conf/all/route_localnet',
  'sys/net/ipv4/conf/all/rp_filter',
  'sys/net/ipv4/ip_local_port_range',
  'sys/net/ipv4/vs/conntrack',
  'sys/net/ipv4/vs/conn_reuse_mode',
  'sys/net/ipv4/vs/expire_nodest_conn',
  'sys/net/netfilter/nf_conntrack_count',
  'net/stat/nf_conntrack',
  ...Object.values(SYSCTLS).map(({ path }) => path.replace(/^proc\//, '')),
]

async function readSettings(): Promise<string> {
  const values: Record<string, string | null> = {}
  for (const path of SETTINGS)
    values[path] = (await readText(path.startsWith('sys/module') ? `/${path}` : `/proc/${path}`)) ?? null
  return JSON.stringify(values, undefined, 2)
}

async function readLog(path: string | undefined): Promise<Buffer> {
  if (path === undefined)
    throw new Error('the daemon writes no log file; add one with --log-file=FILE (`kubectl logs ... > FILE`)')
  return await lent(await open(path), async file => {
    const { size } = await file.stat()
    // The end of a log, 4 MiB at most, as docs/commands-live.md says.
    const length = Math.min(size, 4 * 1024 * 1024)
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length)
    const end = buffer.subarray(0, bytesRead)
    return length < size ? end.subarray(end.indexOf('\n') + 1) : end
  })
}

async function notesOf(config: Readonly<Record<string, unknown>>): Promise<readonly string[]> {
  const here = await networkNamespace()
  const isElsewhere = typeof config.network === 'string' && config.network !== here
  return isElsewhere
    ? [
        'the daemon runs in another network namespace than this command: the state of the kernel is not that of the daemon',
      ]
    : []
}

interface CommandRun {
  readonly load: () => Promise<Command>
  readonly argv: readonly string[]
  /** The kernel part may be absent, which is no news. */
  readonly isUnnamedOnly?: true
}

class Draft {
  readonly files: BundleFile[] = []
  readonly missing: Missing[] = []
  readonly #gathering: Gathering

  constructor(gathering: Gathering) {
    this.#gathering = gathering
  }

  async add(name: string, about: string, read: () => Promise<Buffer | string>): Promise<void> {
    const { io, progress } = this.#gathering
    if (io.signal.aborted) throw new Error('interrupted')
    progress(`reading ${name}`)
    try {
      const data = await read()
      this.files.push({ name, about, data: typeof data === 'string' ? Buffer.from(data) : data })
    } catch (error) {
      this.missing.push({ name, why: failureText(error) })
    }
  }

  /** Adds what a command prints. Its exit code and its errors come at the end. */
  async command(name: string, about: string, { load, argv, isUnnamedOnly }: CommandRun): Promise<void> {
    if (isUnnamedOnly === true && this.#gathering.proxy !== undefined) return
    await this.add(name, about, async () => {
      let [out, err] = ['', '']
      const io: Io = {
        ...this.#gathering.io,
        out: text => {
          out += text
        },
        err: text => {
          err += text
        },
        outBytes: () => undefined,
        outWritten: () => Promise.resolve(),
        color: false,
        terminal: false,
        columns: undefined,
      }
      const code = await (await load()).run(argv, io)
      if (out === '' && code !== 0) throw new Error(err.trim() || `exit code ${code}`)
      return name.endsWith('.json') ? out : `${out}${err}exit code ${code}\n`
    })
  }
}
