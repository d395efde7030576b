import { execFileSync } from 'node:child_process'
import { constants } from 'node:os'
import { expect, it } from 'vitest'
import {
  errnoName,
  errnoNumber,
  errnoWords,
  knownErrors,
  malformed,
  NetlinkError,
  OutcomeUnknownError,
  unencodable,
} from '../../../src/netlink/errors.ts'

it('has the C library’s words for every number', () => {
  const script = 'import os, sys; print("\\n".join(os.strerror(int(number)) for number in sys.argv[1:]))'
  const numbers = knownErrors().map(([errno]) => String(errno))
  const words = execFileSync('python3', ['-c', script, ...numbers], {
    encoding: 'utf8',
    env: { LC_ALL: 'C' },
  })
  expect(knownErrors().map(([, , text]) => text)).toEqual(words.trimEnd().split('\n'))
})

it('has the platform’s name for every number that Node knows', () => {
  const names = new Map<string, number>(Object.entries(constants.errno))
  const compared = knownErrors().filter(([, name]) => names.has(name))
  expect(compared.length).toBeGreaterThan(30)
  for (const [errno, name] of compared) expect([name, names.get(name)]).toEqual([name, errno])
})

it('gives numbers beyond the table a name of their own', () => {
  expect(errnoName(4103)).toBe('errno 4103')
  expect(errnoWords(4103)).toBe('Unknown error')
  expect(errnoNumber('EWHAT')).toBe(0)
})

it('says what was done, to what, and the kernel’s own words', () => {
  const object = 'ip kube-proxy frontends (ns1/web)'
  const error = new NetlinkError({ operation: 'add element', object, errno: 17, offset: 56, sequence: 9 })
  expect(error.message).toBe('add element ip kube-proxy frontends (ns1/web): EEXIST (File exists)')
  expect(error).toMatchObject({ code: 'EEXIST', errno: 17, offset: 56, sequence: 9, extendedAck: undefined })
})

it('adds the extended acknowledgement', () => {
  const error = new NetlinkError({ operation: 'dump', object: '', errno: 95, extendedAck: 'no such thing' })
  expect(error.message).toBe('dump: EOPNOTSUPP (Operation not supported): no such thing')
})

it('names an errno that only its subsystem has', () => {
  const meaning = { code: 'IPSET_ERR_HASH_FULL', words: 'Hash is full' }
  const error = new NetlinkError({ operation: 'add', object: 'KUBE-CLUSTER-IP', errno: 4352, meaning })
  expect(error.message).toBe('add KUBE-CLUSTER-IP: IPSET_ERR_HASH_FULL (Hash is full)')
  expect(error).toMatchObject({ code: 'IPSET_ERR_HASH_FULL', errno: 4352 })
})

it('keeps the cause', () => {
  const cause = new Error('recvmsg')
  expect(new OutcomeUnknownError({ operation: 'commit', object: 'x', errno: 105, cause }).cause).toBe(cause)
})

it('tells bytes that cannot be read from values that cannot be written', () => {
  expect(malformed('nonsense', 12)).toMatchObject({ code: 'EBADMSG', offset: 12 })
  expect(unencodable('too long')).toMatchObject({ code: 'EMSGSIZE' })
})
