import { parseIp } from '../../../src/base/ip.ts'
import { type Ipset, type IpsetEntry, setTypeOf } from '../../../src/kernel/ipset/state.ts'

interface SavedSet {
  readonly set: Ipset
  readonly bucketSize: number | undefined
  readonly initialValue: number | undefined
  readonly entries: IpsetEntry[]
}

/** What the lines of `ipset save` say. Throws for anything that nobody here writes. */
export function readSaved(text: string): SavedSet[] {
  const sets = new Map<string, SavedSet>()
  for (const line of text.split('\n').filter(each => each !== '')) {
    const [verb, name = '', ...rest] = line.split(' ')
    if (verb === 'create') sets.set(name, createdBy(name, rest))
    else if (verb === 'add') {
      const into = sets.get(name)
      if (into === undefined) throw new Error(`an entry of no set: ${line}`)
      into.entries.push(readEntry(into.set, rest.join(' ')))
    } else throw new Error(`not of ipset save: ${line}`)
  }
  return [...sets.values()]
}

function createdBy(name: string, [typeName = '', ...rest]: readonly string[]): SavedSet {
  const type = setTypeOf(typeName)
  if (type === undefined) throw new Error(`no type of ours: ${typeName}`)
  const options = new Map<string, string>()
  for (let i = 0; i < rest.length; i += 2) options.set(rest[i] ?? '', rest[i + 1] ?? '')
  const number = (key: string): number | undefined => {
    const value = options.get(key)
    return value === undefined ? undefined : Number(value)
  }
  const family = options.get('family') === 'inet6' ? 'IPv6' : 'IPv4'
  const maxElements = type === 'bitmap:port' ? 65_536 : (number('maxelem') ?? 0)
  const set: Ipset = { name, type, family, maxElements, hashSize: number('hashsize') ?? 0 }
  return { set, bucketSize: number('bucketsize'), initialValue: number('initval'), entries: [] }
}

const PROTOCOLS: Readonly<Record<string, number>> = { tcp: 6, udp: 17, sctp: 132, udplite: 136 }

function readEntry({ type }: Ipset, text: string): IpsetEntry {
  if (type === 'bitmap:port') return { port: Number(text) }
  const [first = '', service = '', second = ''] = text.split(',')
  const ip = address(first)
  if (type === 'hash:ip') return { ip }
  const [name = '', portText = ''] = service.split(':')
  const protocol = PROTOCOLS[name] ?? Number(name)
  const port = Number(portText)
  if (type === 'hash:ip,port') return { ip, protocol, port }
  const [base = '', bits] = second.split('/')
  const ip2 = address(base)
  if (type === 'hash:ip,port,ip') return { ip, protocol, port, ip2 }
  return { ip, protocol, port, ip2, prefix2: bits === undefined ? ip2.length * 8 : Number(bits) }
}

function address(text: string): string {
  const ip = parseIp(text)
  if (ip === undefined) throw new Error(`no address: ${text}`)
  return ip
}
