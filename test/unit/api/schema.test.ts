import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { localv1 } from '../../../src/api/schema.ts'
import { decodeMessage } from '../../../src/wire/protobuf/decoder.ts'
import { ProtobufEncoder } from '../../../src/wire/protobuf/encoder.ts'
import { encodeLocalv1 } from '../../support/api/localv1.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { runs } from '../../support/runs.ts'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))

it('the tables and descriptors are those of the .proto files: npm run protobuf writes them', () => {
  const folder = temporaryFolder()
  const made = join(folder, 'schema.ts')
  const relay = join(folder, 'relay.ts')
  execFileSync(process.execPath, [`${ROOT}deploy/protobuf.mjs`, made, relay])
  expect(readFileSync(`${ROOT}src/api/schema.ts`, 'utf8')).toBe(readFileSync(made, 'utf8'))
  expect(readFileSync(`${ROOT}src/relay/schema.ts`, 'utf8')).toBe(readFileSync(relay, 'utf8'))
})

const word = fc.string({ minLength: 1, maxLength: 12, unit: 'grapheme' })
const words = fc.array(word, { minLength: 1, maxLength: 3 })
const optional: { requiredKeys: never[]; noNullPrototype: boolean } = {
  requiredKeys: [],
  noNullPrototype: true,
}
const yes = fc.constant(true as const)
const number = fc.integer({ min: 1, max: 65_535 })
const ipSet = fc.record({ V4: words, V6: words }, optional)
const texts = fc.dictionary(
  word.filter(key => key !== '__proto__' && !/^\d/.test(key)),
  word,
  { minKeys: 1, maxKeys: 4, noNullPrototype: true },
)
const long = fc.string({ minLength: 120, maxLength: 20_000 })

const anyService = fc.record(
  {
    Namespace: word,
    Name: fc.oneof(word, long),
    Type: word,
    IPs: fc.record(
      { ClusterIPs: ipSet, ExternalIPs: ipSet, Headless: yes, LoadBalancerIPs: ipSet },
      optional,
    ),
    MapIP: yes,
    Ports: fc.array(
      fc.record(
        {
          Name: word,
          Protocol: fc.constantFrom(1, 2, 3),
          Port: number,
          NodePort: number,
          TargetPort: number,
          TargetPortName: word,
        },
        optional,
      ),
      { minLength: 1, maxLength: 3 },
    ),
    ExternalTrafficToLocal: yes,
    Labels: texts,
    Annotations: texts,
    IPFilters: fc.array(fc.record({ TargetIPs: ipSet, SourceRanges: words }, optional), {
      minLength: 1,
      maxLength: 2,
    }),
    ClientIP: fc.record({ TimeoutSeconds: number }, optional),
    InternalTrafficToLocal: yes,
    HealthCheckNodePort: number,
  },
  optional,
)

const anyEndpoint = fc.record(
  {
    Hostname: word,
    IPs: ipSet,
    Local: yes,
    PortOverrides: fc.array(fc.record({ Name: word, Port: number }, optional), {
      minLength: 1,
      maxLength: 3,
    }),
    Scopes: fc.record({ Internal: yes, External: yes }, optional),
  },
  optional,
)

/** protobufjs writes fields in the order of their numbers, and maps in that of their keys in the object. */
function expected(type: string, value: object): string {
  return hex(encodeLocalv1(type, sorted(value)))
}

function sorted(value: object): object {
  return Object.fromEntries(
    Object.entries(value).map(([key, its]) => [
      key,
      key === 'Labels' || key === 'Annotations'
        ? Object.fromEntries(Object.entries(its).sort(([a], [b]) => (a < b ? -1 : 1)))
        : its,
    ]),
  )
}

const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex')

describe('messages as bytes', () => {
  const encoder = new ProtobufEncoder()

  it('are what another implementation writes for a Service, and are read as what they were', () => {
    fc.assert(
      fc.property(anyService, value => {
        const bytes = Buffer.from(encoder.encode(localv1.Service, value))
        expect(hex(bytes)).toBe(expected('Service', value))
        expect(decodeMessage(localv1.Service, bytes)).toEqual(value)
      }),
      { numRuns: runs(300) },
    )
  })

  it('and for an endpoint', () => {
    fc.assert(
      fc.property(anyEndpoint, value => {
        const bytes = Buffer.from(encoder.encode(localv1.Endpoint, value))
        expect(hex(bytes)).toBe(expected('Endpoint', value))
        expect(decodeMessage(localv1.Endpoint, bytes)).toEqual(value)
      }),
      { numRuns: runs(300) },
    )
  })

  it('leave out what is empty, but no message and no item of a list', () => {
    const value = { Namespace: '', HealthCheckNodePort: 0, MapIP: false, Ports: [], IPs: { ClusterIPs: {} } }
    expect(hex(encoder.encode(localv1.Service, value))).toBe('22020a00')
    expect(hex(encoder.encode(localv1.Endpoint, { IPs: { V4: [''] } }))).toBe('12020a00')
    expect(hex(encoder.encode(localv1.Service, {}))).toBe('')
  })

  it('have lengths of more than one byte where nested messages are long', () => {
    for (const length of [125, 126, 127, 128, 16_380, 16_384, 2_100_000]) {
      const value = { IPs: { V4: ['x'.repeat(length)] } }
      const bytes = encoder.encode(localv1.Endpoint, value)
      expect(hex(bytes) === expected('Endpoint', value), `${length}`).toBe(true)
    }
  })

  it('have the numbers that the back ends of KPNG know', () => {
    const ips = { V4: ['4'], V6: ['6'] }
    const service = {
      Namespace: 'ns',
      Name: 'n',
      Type: 't',
      IPs: { ClusterIPs: ips, ExternalIPs: ips, Headless: true, LoadBalancerIPs: ips },
      MapIP: true,
      Ports: [{ Name: 'p', Protocol: 1, Port: 2, NodePort: 3, TargetPort: 4, TargetPortName: 'q' }],
      ExternalTrafficToLocal: true,
      Labels: { k: 'v' },
      Annotations: { a: 'b' },
      IPFilters: [{ TargetIPs: ips, SourceRanges: ['r'] }],
      ClientIP: { TimeoutSeconds: 5 },
      InternalTrafficToLocal: true,
      HealthCheckNodePort: 6,
    }
    const endpoint = {
      Hostname: 'h',
      IPs: ips,
      Local: true,
      PortOverrides: [{ Name: 'p', Port: 1 }],
      Scopes: { Internal: true, External: true },
    }
    expect(hex(encoder.encode(localv1.Service, service))).toBe(
      '0a026e7312016e1a0174221a0a060a013412013612060a0134120136180122060a01341201362801320e0a0170100118022003' +
        '2804320171380142060a016b1201764a060a0161120162520b0a060a01341201361201725a02080560016806',
    )
    expect(hex(encoder.encode(localv1.Endpoint, endpoint))).toBe(
      '0a016812060a0134120136180122050a017010012a0408011001',
    )
    expect(localv1.Set).toEqual({ UnknownSet: 0, ServicesSet: 1, EndpointsSet: 2 })
    expect(localv1.Protocol).toEqual({ UnknownProtocol: 0, TCP: 1, UDP: 2, SCTP: 3 })
  })
})
