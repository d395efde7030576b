import { createHmac } from 'node:crypto'
import { listAt } from '../../base/plain-data.ts'
import { MODE_NAMES } from '../../config/modes.ts'
import { isJson } from '../../model/fields.ts'
import { chainNames, endpointChain, portChains } from '../../modes/xt-common/layout.ts'
import type { BundleContent } from '../bundle-file.ts'

/** Renames consistently: one name has one pseudonym, wherever it is. Lengths stay, so that everything around a name stays as well. */
interface Redaction {
  readonly names: number
  text(text: string): string
  /** Renames the names in the values of plain data, and in keys of objects that are names. */
  json(value: unknown): unknown
}

interface RedactionOptions {
  readonly names: ReadonlySet<string>
  /** A random key that is not stored: without it, a guessed name cannot be tested. */
  readonly key: Buffer
  /** Words to replace besides, such as hashes of names, each with its own replacement. */
  readonly derived?: (rename: (text: string) => string) => Iterable<readonly [from: string, to: string]>
}

/** Values of settings and of enums in plain data: a name that equals one is renamed beside a slash only. */
const WORDS: ReadonlySet<string> = new Set([
  ...MODE_NAMES,
  ...['kube', 'file', 'none', 'true', 'false', 'primary'],
  // Types of ipsets, and schedulers.
  ...['hash', 'bitmap', 'port', 'net', 'rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'dh', 'sh', 'mh'],
  ...['sed', 'nq', 'fo', 'ovf', 'twos'],
  ...['cluster', 'local', 'ports', 'whole', 'ip', 'ip6', 'accept', 'drop', 'reject', 'balance'],
])

/** Objects that every cluster has. */
const PUBLIC: ReadonlySet<string> = new Set([
  ...['default', 'kubernetes', 'kube-system', 'kube-public', 'kube-node-lease', 'localhost'],
])

/** Text between separators of names. Addresses of IPv6 have colons, which names have not. */
const TOKEN = /[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?/g
/** Letters and digits that are as well a group of an address, or a number. */
const LIKE_ADDRESS = /^(?:[0-9a-f]{1,4}|[0-9.]+)$/

/** Makes the pseudonyms: keyed hashes as long as the names. */
export function redactionOf({ names, key, derived = () => [] }: RedactionOptions): Redaction {
  const renamed = pseudonymsOf(names, key)
  const partsMax = Math.max(1, ...[...names].map(name => partsOf(name).length))
  const context: Renaming = { renamed, partsMax, words: WORDS }
  const plain = (text: string) => renameText(text, context)
  const all: Renaming = { ...context, renamed: new Map([...renamed, ...derived(plain)]) }
  const json = (value: unknown): unknown => {
    if (typeof value === 'string') return WORDS.has(value) ? value : renameText(value, all)
    if (Array.isArray(value)) return value.map(json)
    if (!isJson(value)) return value
    const isName = (field: string) => field.includes('/')
    return Object.fromEntries(
      Object.entries(value).map(([field, item]) => [
        isName(field) ? renameText(field, all) : field,
        json(item),
      ]),
    )
  }
  return {
    names: names.size,
    text: text => renameText(text, all),
    json,
  }
}

const LETTERS = 'abcdefghijklmnopqrstuvwxyz'
const LETTERS_AND_DIGITS = `${LETTERS}0123456789`
/** Short names have few others of their length. */
const TRIES_MAX = 4_096

function pseudonymsOf(names: ReadonlySet<string>, key: Buffer): ReadonlyMap<string, string> {
  const renamed = new Map<string, string>()
  const taken = new Set<string>()
  for (const name of [...names].sort()) {
    let pseudonym = ''
    for (let attempt = 0; attempt < TRIES_MAX; attempt++) {
      pseudonym = pseudonymOf(name, { key, attempt })
      const isFree = !taken.has(pseudonym) && (!names.has(pseudonym) || attempt > TRIES_MAX / 2)
      if (isFree) break
      pseudonym = ''
    }
    if (pseudonym === '')
      throw new Error(`too many names of ${name.length} characters to rename each of them`)
    taken.add(pseudonym)
    renamed.set(name, pseudonym)
  }
  return renamed
}

/** A valid name of the same length, with dots in the same places. */
function pseudonymOf(
  name: string,
  { key, attempt }: { readonly key: Buffer; readonly attempt: number },
): string {
  let octets = Buffer.alloc(0)
  for (let block = 0; octets.length < name.length; block++)
    octets = Buffer.concat([octets, createHmac('sha256', key).update(`${attempt} ${block} ${name}`).digest()])
  return [...octets.subarray(0, name.length)]
    .map((octet, at) => {
      if (name[at] === '.') return '.'
      const isFirst = at === 0 || name[at - 1] === '.'
      const letters = isFirst && attempt < TRIES_MAX / 2 ? LETTERS : LETTERS_AND_DIGITS
      return letters[octet % letters.length]
    })
    .join('')
}

interface Renaming {
  readonly renamed: ReadonlyMap<string, string>
  readonly partsMax: number
  /** Names that are words as well, and are renamed beside a slash only. */
  readonly words: ReadonlySet<string>
}

function partsOf(token: string): readonly string[] {
  return token.split(/([.-]+)/)
}

function renameText(text: string, renaming: Renaming): string {
  return text.replace(TOKEN, (token, at: number) => {
    const [before, after] = [text[at - 1], text[at + token.length]]
    const isPair = before === '/' || after === '/'
    const isAddress = before === ':' || (after === ':' && before !== '/')
    return renameToken(token, { ...renaming, isPair, isAddress })
  })
}

interface Place extends Renaming {
  /** A slash is beside the token: `namespace/name`. */
  readonly isPair: boolean
  /** The token may be a group of an IPv6 address, by the colon beside it. */
  readonly isAddress: boolean
}

/** Renames the longest names first: a pod is `web-7f`, and the Service before its hyphen is `web`. */
function renameToken(token: string, place: Place): string {
  const whole = pseudonymIn(token, place)
  if (whole !== undefined) return whole
  const parts = partsOf(token)
  if (parts.length === 1 || /^[0-9.]+$/.test(token)) return token
  let renamed = ''
  for (let from = 0; from < parts.length; ) {
    let to = Math.min(parts.length, from + place.partsMax)
    let found: string | undefined
    for (; to > from; to--) {
      found = pseudonymIn(parts.slice(from, to).join(''), place)
      if (found !== undefined) break
    }
    renamed += found ?? parts[from] ?? ''
    from = found === undefined ? from + 1 : to
  }
  return renamed
}

function pseudonymIn(name: string, { renamed, words, isPair, isAddress }: Place): string | undefined {
  const pseudonym = renamed.get(name)
  if (pseudonym === undefined || (isAddress && LIKE_ADDRESS.test(name))) return undefined
  return words.has(name) && !isPair ? undefined : pseudonym
}

/** Fields whose texts name objects: `namespace/name`, `Service namespace/name`, `namespace/name:port`. */
const NAMING: ReadonlySet<string> = new Set(['key', 'service', 'services', 'object'])
const NAMES: ReadonlySet<string> = new Set([
  ...['nodeName', 'node', 'zone', 'forNodes', 'forZones', 'hostname-override', 'hostnameOverride'],
])
const PAIR = /([a-z0-9][a-z0-9.-]*)\/([a-z0-9][a-z0-9.-]*)/
const NUMERIC = /^[0-9.]*$/

/** Adds the names of objects in plain data that the daemon or a command has written. */
export function collectNames(value: unknown, names: Set<string>, field = ''): void {
  if (Array.isArray(value)) for (const item of value) collectNames(item, names, field)
  else if (typeof value === 'string') addNames(value, names, field)
  else if (isJson(value)) {
    const { kind, key } = value
    if ((kind === 'Node' || kind === 'ServiceCIDR') && typeof key === 'string') add(names, key)
    for (const [name, item] of Object.entries(value)) collectNames(item, names, name)
  }
}

/** An object in a line of a log: `Service shop/cart`, `service=shop/cart`, `Node worker-1`. */
const IN_TEXT =
  /\b(?:Service|EndpointSlice|Endpoints|Pod|service|object)s?[ ="':]+([a-z0-9][a-z0-9.-]*)\/([a-z0-9][a-z0-9.-]*)|\b[Nn]ode[ =]"?([a-z0-9][a-z0-9.-]*[0-9.-][a-z0-9.-]*)/g

/** Adds the names of objects in lines of a log: objects that are gone are nowhere else. */
export function collectNamesInText(text: string, names: Set<string>): void {
  for (const [, ...found] of text.matchAll(IN_TEXT))
    for (const name of found) if (name !== undefined) add(names, name)
}

function addNames(text: string, names: Set<string>, field: string): void {
  if (field === 'targetNames') for (const name of text.split(',')) add(names, name)
  if (NAMES.has(field)) add(names, text)
  if (!NAMING.has(field)) return
  const [, namespace = '', name = ''] = PAIR.exec(text) ?? []
  if (NUMERIC.test(namespace)) return
  add(names, namespace)
  add(names, name)
}

/** Names of numbers alone stay: they are everywhere. */
function add(names: Set<string>, name: string): void {
  if (!NUMERIC.test(name) && !PUBLIC.has(name)) names.add(name)
}

export function redacted({ facts, files, missing }: BundleContent, key: Buffer): BundleContent {
  const plain = new Map(
    files.map(({ name, data }) => [name, name.endsWith('.json') ? parsed(data) : undefined]),
  )
  const names = new Set<string>()
  for (const value of plain.values()) collectNames(value, names)
  collectNames({ nodeName: [facts.node, facts.host] }, names)
  const log = files.find(({ name }) => name === 'log.txt')
  if (log !== undefined) collectNamesInText(log.data.toString('utf8'), names)
  const redaction = redactionOf({
    names,
    key,
    derived: rename => hashesOf(plain.get('state.json'), rename),
  })
  const text = (value: unknown) => (typeof value === 'string' ? redaction.text(value) : value)
  return {
    facts: {
      ...facts,
      node: text(facts.node),
      host: text(facts.host),
      redacted: true,
      names: redaction.names,
      kept: 'default, kubernetes, kube-system, kube-public and kube-node-lease, which every cluster has; addresses, ports and their names, lengths of names, UIDs, times; a name that is a word of kprobe too (such as cluster) stays where it may be that word; hosts of servers, paths of files, and names of objects that only rules of other programs mention',
    },
    files: files.map(file => {
      const { name, data } = file
      const value = plain.get(name)
      const text =
        value === undefined ? redaction.text(data.toString('utf8')) : JSON.stringify(redaction.json(value))
      return { ...file, data: Buffer.from(text) }
    }),
    missing: missing.map(({ name, why }) => ({ name, why: redaction.text(why) })),
  }
}

function parsed(data: Buffer): unknown {
  return JSON.parse(data.toString('utf8'))
}

/**
 * Hashes of names, in the names of chains of iptables mode: they would let a guess be tested, and follow from the
 * pseudonyms.
 */
function* hashesOf(state: unknown, rename: (text: string) => string): Generator<readonly [string, string]> {
  for (const service of listAt(state, 'services'))
    for (const port of listAt(service, 'ports')) {
      const { name, protocol } = isJson(port) ? port : {}
      if (typeof name !== 'string' || (protocol !== 'TCP' && protocol !== 'UDP' && protocol !== 'SCTP'))
        continue
      const hashes = (displayName: string) => [
        portChains(CHAINS, displayName, protocol).svc,
        ...[...listAt(port, 'cluster'), ...listAt(port, 'local')].map(backend => {
          const { ip, port: number } = isJson(backend) ? backend : {}
          const text = String(ip)
          const ipPort = `${text.includes(':') ? `[${text}]` : text}:${String(number)}`
          return endpointChain(CHAINS, { displayName, protocol, ipPort })
        }),
      ]
      const [before, after] = [hashes(name), hashes(rename(name))]
      for (const [at, chain] of before.entries())
        yield [chain.slice(-HASH_LENGTH), after[at]?.slice(-HASH_LENGTH) ?? '']
    }
}

const CHAINS = chainNames(undefined)
const HASH_LENGTH = 16
