import fc from 'fast-check'
import protobuf from 'protobufjs'
import { describe, expect, it } from 'vitest'
import { Encoder } from '../../../src/api/encode.ts'
import { ENDPOINT, SERVICE } from '../../../src/api/localv1.ts'
import { runs } from '../../support/runs.ts'

/** Written from KPNG's definitions, independent of the tables. */
const { root } = protobuf.parse(
  `
  syntax = "proto3"; package localv1;
  message IPSet { repeated string V4 = 1; repeated string V6 = 2; }
  message ServiceIPs { IPSet ClusterIPs = 1; IPSet ExternalIPs = 2; bool Headless = 3; IPSet LoadBalancerIPs = 4; }
  message PortMapping { string Name = 1; int32 Protocol = 2; int32 Port = 3; int32 NodePort = 4; int32 TargetPort = 5; string TargetPortName = 6; }
  message IPFilter { IPSet TargetIPs = 1; repeated string SourceRanges = 2; }
  message ClientIPAffinity { int32 TimeoutSeconds = 1; }
  message Service {
    string Namespace = 1; string Name = 2; string Type = 3; ServiceIPs IPs = 4; bool MapIP = 5; repeated PortMapping Ports = 6;
    bool ExternalTrafficToLocal = 7; map<string, string> Labels = 8; map<string, string> Annotations = 9;
    repeated IPFilter IPFilters = 10; ClientIPAffinity ClientIP = 11; bool InternalTrafficToLocal = 12; int32 HealthCheckNodePort = 13;
  }
  message PortName { string Name = 1; int32 Port = 2; }
  message EndpointScopes { bool Internal = 1; bool External = 2; }
  message Endpoint { string Hostname = 1; IPSet IPs = 2; bool Local = 3; repeated PortName PortOverrides = 4; EndpointScopes Scopes = 5; }
  `,
  { keepCase: true },
)

const word = fc.string({ minLength: 1, maxLength: 12, unit: 'grapheme' })
const words = fc.array(word, { minLength: 1, maxLength: 3 })
const optional = { requiredKeys: [] }
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
          Protocol: number,
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
  const message = root.lookupType(`localv1.${type}`)
  return Buffer.from(message.encode(message.fromObject(sorted(value))).finish()).toString('hex')
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

describe('messages as bytes', () => {
  const encoder = new Encoder()
  const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex')

  it('are what another implementation writes for a Service', () => {
    fc.assert(
      fc.property(anyService, value => {
        expect(hex(encoder.encode(SERVICE, value))).toBe(expected('Service', value))
      }),
      { numRuns: runs(300) },
    )
  })

  it('and for an endpoint', () => {
    fc.assert(
      fc.property(anyEndpoint, value => {
        expect(hex(encoder.encode(ENDPOINT, value))).toBe(expected('Endpoint', value))
      }),
      { numRuns: runs(300) },
    )
  })

  it('leave out what is empty, but no message and no item of a list', () => {
    const value = { Namespace: '', HealthCheckNodePort: 0, MapIP: false, Ports: [], IPs: { ClusterIPs: {} } }
    expect(hex(encoder.encode(SERVICE, value))).toBe('22020a00')
    expect(hex(encoder.encode(ENDPOINT, { IPs: { V4: [''] } }))).toBe('12020a00')
    expect(hex(encoder.encode(SERVICE, {}))).toBe('')
  })

  it('have lengths of more than one byte where nested messages are long', () => {
    for (const length of [125, 126, 127, 128, 16_380, 16_384, 2_100_000]) {
      const value = { IPs: { V4: ['x'.repeat(length)] } }
      expect(hex(encoder.encode(ENDPOINT, value)) === expected('Endpoint', value), `${length}`).toBe(true)
    }
  })
})
