import { randomBytes } from 'node:crypto'
import { bytesText, count, oneLine, rfc3339 } from '../base/text.ts'
import { type FlagReader, type FlagSpec, flags, quote } from '../config/flag.ts'
import { MODEL_SOCKET_FLAG } from '../config/flag-tables.ts'
import { INSTANCE_FLAG, readInstanceName, readSocketPath } from '../config/own-flags.ts'
import { usualSocket } from './admin-client.ts'
import { BUNDLE_BYTES_MAX, encodeBundle, FILE_BYTES_MAX, writeBundle } from './bundle.ts'
import { orFailed, ownCommand } from './command.ts'
import { type Gathered, gather, redacted } from './gather.ts'
import { EXIT_FINE, type Io } from './io.ts'

const FLAGS: readonly FlagSpec[] = [
  ...flags({
    '-o, --output FILE':
      'file to write, or - for standard output; unset: kprobe-bundle-NODE-TIME.tar.gz in the current folder',
    '--redact':
      'rename namespaces, Services, EndpointSlices, pods, nodes and zones, in every file alike; addresses, ports and their names stay, because verdicts follow from them',
    '--log-file FILE': 'log of the daemon, whose end goes into the bundle; the daemon itself keeps no log',
  }),
  MODEL_SOCKET_FLAG,
  INSTANCE_FLAG,
]

export const command = ownCommand({
  name: 'debug',
  usage: 'bundle [-o FILE] [flags]',
  description:
    'Writes one file for a bug report: what the daemon knows and did, what the kernel holds, what doctor says. `kprobe\n' +
    'replay FILE` gives the same answers on another machine. Without a daemon, the bundle has the part of the kernel.\n' +
    'Changes nothing.',
  details: [
    'In it:',
    '  manifest.json says what is in the bundle, what is not, and why. Secrets are never read; labels and annotations are left out, but for the settings that kprobe takes from them.',
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
  if (what !== 'bundle')
    reader.fail(quote(what ?? ''), 'no such argument; there is bundle: `kprobe debug bundle`')
  for (const argument of more) reader.fail(quote(argument), 'no such argument')
  const output = reader.text('output')
  if (output === '' || output?.endsWith('/') === true)
    reader.fail('--output', `${quote(output)} names no file`)
  if (output === '-' && io.terminal)
    reader.fail('--output', 'standard output is a terminal: write to a file, or into a pipe')
  const proxy = readInstanceName(reader)
  return {
    output,
    proxy,
    socket: readSocketPath(reader) || usualSocket(proxy),
    isGiven: reader.given('admin-socket'),
    redact: reader.bool('redact'),
    logFile: reader.text('log-file'),
  }
}

async function writeAll({ output, redact, ...rest }: Request, io: Io): Promise<number> {
  const progress = (doing: string) => io.terminal && io.err(`${doing} ...\n`)
  const all = await gather({ ...rest, io, progress })
  if (redact) progress('renaming')
  const content = redact ? redacted(all, randomBytes(32)) : all
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
  for (const { name, why } of missing) io.err(`not in it: ${oneLine(`${name}: ${why}`)}\n`)
  return EXIT_FINE
}

function namesText({ facts }: Gathered): string {
  const { names } = facts
  return typeof names === 'number' ? `${count(names, 'name')} renamed` : 'renamed'
}

/** The name of the node is no part of a redacted bundle's. */
function defaultPath({ facts }: Gathered, isRedacted: boolean): string {
  const time = rfc3339(Date.now()).replaceAll(/[-:]/g, '')
  const node = typeof facts.node === 'string' ? facts.node.replaceAll(/[^\w.-]/g, '') : ''
  return `kprobe-bundle-${isRedacted || node === '' ? '' : `${node}-`}${time}.tar.gz`
}
