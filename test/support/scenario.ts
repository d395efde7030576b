import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'yaml'
import { assert } from '../../src/base/errors.ts'
import { canonicalAddress, endpointText, NODE_ADDRESSES, POD_GATEWAYS, parseEndpoint } from './lab/address.ts'
import type { Place } from './lab/lab.ts'
import type { ProbeProtocol } from './lab/probe.ts'
import type { PipelineConfig } from './pipeline.ts'

/**
 * One file of test/scenarios: Kubernetes objects, and what must happen to packets. README.md there explains the format.
 * A scenario says what kube-proxy's nftables mode does, never what this project happened to do.
 */
export interface Scenario {
  readonly file: string
  readonly name: string
  readonly description: string
  readonly config: PipelineConfig
  readonly steps: readonly ScenarioStep[]
}

/** Objects that come, change and go, and what holds afterwards. */
export interface ScenarioStep {
  readonly title: string
  readonly objects: readonly unknown[]
  readonly remove: readonly string[]
  readonly rows: readonly PacketRow[]
  /** `Service ns1/web spec.externalIPs 127.0.0.1`: all refusals there are, sorted. */
  readonly refusals: readonly string[]
}

/** A line of a packet table. */
export interface PacketRow {
  /** The line itself, for messages. */
  readonly text: string
  readonly from: Place
  readonly source: string
  readonly protocol: ProbeProtocol
  readonly destination: string
  readonly port: number
  readonly expected: Expected
}

export type Expected =
  /** NOWHERE: any of the others. */
  | { readonly verdict: 'REJECT' | 'DROP' | 'PASS' | 'NOWHERE' }
  | {
      readonly verdict: 'DNAT'
      /** All of them are reached, and no other; of a sticky row, one of them. Sorted. */
      readonly endpoints: readonly string[]
      /** Hairpin: masqueraded on the way to the endpoint that is the source itself, kept on the way to others. */
      readonly source: 'kept' | 'masqueraded' | 'hairpin'
      /** All connections of all rows with one label, in all steps, reach the same endpoint. */
      readonly sticky: string | undefined
    }

/** Addresses of the node that scenarios count on; the last one is for load balancers that live on the node. */
export const LOCAL_IPS: readonly string[] = [...NODE_ADDRESSES, ...POD_GATEWAYS, '192.168.99.22']

/** Where packets come from unless a row says otherwise. */
const SOURCES: Readonly<Record<Place, readonly [string, string]>> = {
  outside: ['203.0.113.9', '2001:db8:f::9'],
  pod: ['10.180.9.9', 'fd00:10::9:9'],
  node: ['192.168.0.2', '2001:db8::2'],
}

const FOLDER = fileURLToPath(new URL('../scenarios/', import.meta.url))

/** No scenarios: what becomes otherwise of packets in a mode (see mode-differences.ts). */
const DIFFERENCES = '-differences.yaml'

export function readScenarioFile(file: string): string {
  return readFileSync(FOLDER + file, 'utf8')
}

/** Nobody changes one: files of one worker share them, because parsing all takes a second. */
let scenarios: readonly Scenario[] | undefined

export function loadScenarios(): readonly Scenario[] {
  scenarios ??= readdirSync(FOLDER)
    .filter(file => file.endsWith('.yaml') && !file.endsWith(DIFFERENCES))
    .sort()
    .map(file => parseScenario(file, readScenarioFile(file)))
  return scenarios
}

/** Scenarios with packets that a rule rejects, that a rule drops, and that the map of service ports drops. */
export const LOGGED = ['source-ranges.yaml', 'external-local-none-here.yaml'] as const

export function scenarioOf(file: string): Scenario {
  return parseScenario(file, readScenarioFile(file))
}

function parseScenario(file: string, text: string): Scenario {
  return scenarioFrom(file, parse(text))
}

/** Reads what a file holds, parsed; `file` is for messages. */
export function scenarioFrom(file: string, parsed: unknown): Scenario {
  const document = record(parsed, file)
  checkKeys(file, document, [
    'name',
    'description',
    'config',
    'objects',
    'packets',
    'refusals',
    'then',
    'surroundings',
  ])
  const surroundings = document.surroundings === 'none' ? [] : SURROUNDINGS
  const first = step(file, {
    ...document,
    title: 'objects',
    objects: [...surroundings, ...list(document.objects)],
  })
  const further = list(document.then).map((value, index) => {
    const at = `${file}, then[${index}]`
    const fields = record(value, at)
    checkKeys(at, fields, ['title', 'objects', 'remove', 'packets', 'refusals'])
    return step(at, fields)
  })
  return {
    file,
    name: string(document.name, `${file}: name`),
    description: string(document.description, `${file}: description`),
    config: config(file, document.config),
    steps: [first, ...further],
  }
}

/** The node and the ServiceCIDRs that every scenario has unless it says `surroundings: none`. */
const SURROUNDINGS: readonly unknown[] = [
  {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'test-node', labels: { 'topology.kubernetes.io/zone': 'zone-a' } },
    spec: { podCIDRs: ['10.180.0.0/24', 'fd00:10::/96'] },
    status: {
      addresses: NODE_ADDRESSES.map(address => ({ type: 'InternalIP', address })),
    },
  },
  {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: 'kubernetes' },
    spec: { cidrs: ['172.30.0.0/16', 'fd00:172:30::/112'] },
  },
]

const CONFIG_KEYS: ReadonlyArray<keyof PipelineConfig> = [
  'detectLocalMode',
  'clusterCIDR',
  'detectLocal',
  'masqueradeAll',
  'masqueradeBit',
  'nodePortAddresses',
  'allowedExternalCidrs',
  'allowedLoadBalancerCidrs',
  'serviceProxyName',
]

function config(file: string, value: unknown): PipelineConfig {
  const fields = value === undefined ? {} : record(value, `${file}: config`)
  checkKeys(`${file}: config`, fields, CONFIG_KEYS)
  return fields
}

function step(at: string, fields: Fields): ScenarioStep {
  const packets = string(fields.packets ?? '', `${at}: packets`)
  return {
    title: string(fields.title, `${at}: title`),
    objects: list(fields.objects),
    remove: list(fields.remove).map(name => string(name, `${at}: remove`)),
    rows: packets.split('\n').flatMap(line => parseRow(at, line)),
    refusals: list(fields.refusals)
      .map(name => string(name, `${at}: refusals`))
      .sort(),
  }
}

const ROW = /^(outside|pod|node)(?: (\S+))? (TCP|UDP|SCTP) (\S+) -> (.+)$/

/** `pod 10.0.1.1 TCP 172.30.0.41:80 -> 10.180.0.1:80 10.180.1.1:80 kept`; nothing for comments and blank lines. */
export function parseRow(at: string, line: string): readonly PacketRow[] {
  const text = line.replace(/#.*/, '').trim().replace(/\s+/g, ' ')
  if (text === '') return []
  const match = ROW.exec(text)
  assert(match !== null, `${at}: not a packet: ${line}`)
  const [, place = '', source, protocol = '', target = '', outcome = ''] = match
  const { address, port } = parseEndpoint(target)
  const from = PLACES.find(one => one === place)
  const known = PROTOCOLS.find(one => one === protocol)
  assert(from !== undefined && known !== undefined, `${at}: ${line}`)
  const [v4, v6] = SOURCES[from]
  const usual = address.includes(':') ? v6 : v4
  const expected = expectation(at, outcome.split(' '))
  return [
    {
      text,
      from,
      source: canonicalAddress(source ?? usual),
      protocol: known,
      destination: address,
      port,
      expected,
    },
  ]
}

const PLACES: readonly Place[] = ['outside', 'pod', 'node']
const PROTOCOLS: readonly ProbeProtocol[] = ['TCP', 'UDP', 'SCTP']
const VERDICTS = { reject: 'REJECT', drop: 'DROP', pass: 'PASS', nowhere: 'NOWHERE' } as const

function expectation(at: string, words: readonly string[]): Expected {
  const [first = ''] = words
  if (first === 'reject' || first === 'drop' || first === 'pass' || first === 'nowhere') {
    assert(words.length === 1, `${at}: ${words.join(' ')}: a ${first} takes nothing more`)
    return { verdict: VERDICTS[first] }
  }
  const source = words.find(word => word === 'kept' || word === 'masqueraded' || word === 'hairpin')
  assert(source !== undefined, `${at}: ${words.join(' ')}: is the source kept, masqueraded or hairpin?`)
  const sticky = words.find(word => word.startsWith('sticky='))
  const endpoints = words.filter(word => word !== source && word !== sticky).flatMap(expand)
  assert(endpoints.length > 0, `${at}: ${words.join(' ')}: no endpoint`)
  return { verdict: 'DNAT', endpoints: endpoints.sort(), source, sticky: sticky?.slice('sticky='.length) }
}

/** `10.180.0.{1..3}:80` is three endpoints. */
function expand(word: string): readonly string[] {
  const match = /^(.*)\{(\d+)\.\.(\d+)\}(.*)$/.exec(word)
  if (match === null) return [normalized(word)]
  const [, before = '', from, to, after = ''] = match
  const count = Number(to) - Number(from) + 1
  return Array.from({ length: count }, (_, index) => normalized(`${before}${Number(from) + index}${after}`))
}

function normalized(text: string): string {
  const { address, port } = parseEndpoint(text)
  return endpointText(address, port)
}

type Fields = Readonly<Record<string, unknown>>

function record(value: unknown, at: string): Fields {
  assert(isFields(value), `${at}: not a mapping`)
  return value
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function list(value: unknown): readonly unknown[] {
  assert(value === undefined || value === null || Array.isArray(value), 'not a list')
  return value ?? []
}

function string(value: unknown, at: string): string {
  assert(typeof value === 'string', `${at}: not a text`)
  return value
}

function checkKeys(at: string, fields: Fields, known: readonly string[]): void {
  for (const key of Object.keys(fields)) assert(known.includes(key), `${at}: unknown key ${key}`)
}
