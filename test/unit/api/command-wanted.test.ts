import { expect, it } from 'vitest'
import { type ApiWanted, readApiWanted } from '../../../src/api/command.ts'
import { API_FLAGS } from '../../../src/config/flags.ts'
import { parsedOf, parseFlags } from '../../support/parse-flags.ts'

async function wanted(...argv: string[]): Promise<ApiWanted> {
  const { config, extra } = parsedOf(parseFlags(argv, { hostName: 'here', extra: API_FLAGS, modeless: true }))
  const its = await readApiWanted(extra, { config, args: [], path: process.env.PATH })
  expect(extra.errors).toEqual([])
  return its
}

it('proxies of several names are served at several places', async () => {
  expect((await wanted()).listen).toBe('unix:///run/kprobe/api.sock')
  expect((await wanted('--service-proxy-name=red')).listen).toBe('unix:///run/kprobe/api-red.sock')
  expect((await wanted('--service-proxy-name=red', '--listen=unix:///x')).listen).toBe('unix:///x')
})

it('nothing is served beside --print and --exec but where it is told, with all that was asked for', async () => {
  expect((await wanted('--print')).listen).toBeUndefined()
  expect((await wanted('--exec=sh', '--once')).listen).toBeUndefined()
  const tls = ['--api-tls-cert=c', '--api-tls-key=k', '--api-tls-client-ca=a']
  expect(await wanted('--print', '--listen=tcp://127.0.0.1:1', ...tls)).toMatchObject({
    listen: 'tcp://127.0.0.1:1',
    tls: { certFile: 'c', keyFile: 'k', clientCaFile: 'a' },
  })
})

it('flags of kprobe run that conflict there do not conflict here', async () => {
  expect((await wanted('--proxy-mode=userspace', '--exec=sh', '--once', '--api=unix:///x')).once).toBe(true)
})
