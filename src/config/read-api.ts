import { DEFAULT_API_ADDRESS, parseApiAddress } from '../api/grpc/address.ts'
import { errorOf } from '../base/failure-text.ts'
import { API_TLS_FLAGS } from './api-flags.ts'
import type { ApiConfig, ApiTlsConfig, Config } from './config.ts'
import type { FlagReader } from './flag-reader.ts'

/** Reads the API flags of `kprobe run`. */
export function readApi(reader: FlagReader): ApiConfig | undefined {
  const tls = readApiTls(reader)
  const address = readApiAddress(reader, 'api')
  return address === undefined ? undefined : { address, tls }
}

/** Reports API flags of `kprobe run` that would have no effect. */
export function refuseIdleApi(reader: FlagReader, { api, once }: Pick<Config, 'api' | 'once'>): void {
  if (api !== undefined && once)
    reader.fail('--api', 'cannot be combined with --once, which exits before a client can connect')
  for (const { name } of API_TLS_FLAGS)
    if (api === undefined && (reader.text(name) ?? '') !== '')
      reader.fail(`--${name}`, 'needs --api, which is not given')
}

/** Gives a default address for each proxy of a node. */
export function defaultApiAddress(serviceProxyName: string | undefined): string {
  return serviceProxyName === undefined
    ? DEFAULT_API_ADDRESS
    : DEFAULT_API_ADDRESS.replace(/\.sock$/, `-${serviceProxyName}.sock`)
}

/** Reads an address; undefined if unset. */
export function readApiAddress(reader: FlagReader, flag: string): string | undefined {
  const text = reader.text(flag) ?? ''
  if (text === '') return undefined
  try {
    parseApiAddress(text)
  } catch (error) {
    reader.fail(`--${flag}`, errorOf(error).message)
  }
  return text
}

/** Reads the three files of TLS, all or none of which must be set. */
export function readApiTls(reader: FlagReader): ApiTlsConfig | undefined {
  const files = API_TLS_FLAGS.map(({ name }) => reader.text(name) ?? '')
  const [certFile = '', keyFile = '', clientCaFile = ''] = files
  if (files.every(file => file === '')) return undefined
  for (const [index, { name }] of API_TLS_FLAGS.entries())
    if (files[index] === '') reader.fail(`--${name}`, 'is missing: TLS needs certificate, key and client CA')
  return { certFile, keyFile, clientCaFile }
}
