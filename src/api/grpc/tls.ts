import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { createSecureContext, type SecureContextOptions } from 'node:tls'
import type { Cancel, Clock } from '../../base/clock.ts'
import { errorOf } from '../../base/failure-text.ts'

/** Paths of PEM files. */
export interface ApiTls {
  readonly certFile: string
  readonly keyFile: string
  readonly clientCaFile: string
}

/** What is in them. Clients must have a certificate that one of the authorities signed. */
export interface TlsPems {
  readonly cert: string
  readonly key: string
  readonly clientCa: string
}

/** Rejects with an Error that names the flag and the path of what cannot be used. */
export async function readTls({ certFile, keyFile, clientCaFile }: ApiTls): Promise<TlsPems> {
  const cert = await read('--api-tls-cert', certFile)
  const [own] = certificatesIn('--api-tls-cert', certFile, cert)
  const key = await read('--api-tls-key', keyFile)
  if (own?.checkPrivateKey(privateKeyIn(keyFile, key)) === false)
    throw new Error(`--api-tls-key: the key in ${keyFile} does not match the certificate in ${certFile}`)
  const clientCa = await read('--api-tls-client-ca', clientCaFile)
  certificatesIn('--api-tls-client-ca', clientCaFile, clientCa)
  const pems = { cert, key, clientCa }
  try {
    createSecureContext(contextOf(pems))
  } catch (thrown) {
    const { message } = errorOf(thrown)
    throw new Error(`--api-tls-cert: ${certFile} cannot be used with its key and authorities: ${message}`)
  }
  return pems
}

export function contextOf({ cert, key, clientCa }: TlsPems): SecureContextOptions {
  return { cert, key, ca: clientCa, minVersion: 'TLSv1.2' }
}

async function read(flag: string, path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (thrown) {
    throw new Error(`${flag}: ${errorOf(thrown).message}`)
  }
}

const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g

/** At least one: where OpenSSL is given no authority, Node.js takes every public one for one. */
function certificatesIn(flag: string, path: string, pem: string): readonly X509Certificate[] {
  const blocks = pem.match(CERTIFICATE) ?? []
  if (blocks.length === 0) throw new Error(`${flag}: there is no certificate in ${path}`)
  return blocks.map((block, index) => {
    try {
      return new X509Certificate(block)
    } catch (thrown) {
      throw new Error(`${flag}: certificate ${index + 1} in ${path}: ${errorOf(thrown).message}`)
    }
  })
}

function privateKeyIn(path: string, pem: string): KeyObject {
  try {
    return createPrivateKey(pem)
  } catch (thrown) {
    throw new Error(`--api-tls-key: no private key that can be read in ${path}: ${errorOf(thrown).message}`)
  }
}

/** Certificates are renewed where they are: as often as kubelet looks at what it mounts. */
const LOOK_MS = 60_000

interface TlsFollower {
  readonly clock: Clock
  /** What is used now. */
  readonly pems: TlsPems
  readonly changed: (pems: TlsPems) => void
  /** The files cannot be used as they are: said once, and what was read last stays. */
  readonly failed: (error: Error) => void
}

/** Looks at the files every minute, until it is cancelled. */
export function followTls(files: ApiTls, { clock, pems, changed, failed }: TlsFollower): Cancel {
  let isOver = false
  let used = JSON.stringify(pems)
  let said = ''
  const look = async (): Promise<void> => {
    try {
      const now = await readTls(files)
      if (!isOver && JSON.stringify(now) !== used) changed(now)
      used = JSON.stringify(now)
      said = ''
    } catch (thrown) {
      const error = errorOf(thrown)
      if (!isOver && error.message !== said) failed(error)
      said = error.message
    }
    if (!isOver) cancel = clock.after(LOOK_MS, () => void look())
  }
  let cancel = clock.after(LOOK_MS, () => void look())
  return () => {
    isOver = true
    cancel()
  }
}
