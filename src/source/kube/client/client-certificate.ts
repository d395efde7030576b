import { createHash } from 'node:crypto'
import { createSecureContext } from 'node:tls'
import { CachedFile, type CachedFileOptions } from './cached-file.ts'
import type { Access, Material } from './kubeconfig.ts'

export interface KeyPair {
  readonly cert: string | undefined
  readonly key: string | undefined
  /** Differs between any two pairs, and says nothing about them. */
  readonly identity: string
}

export const NO_KEY_PAIR: KeyPair = { cert: undefined, key: undefined, identity: '' }

type FileContext = Pick<CachedFileOptions, 'where' | 'clock' | 'warn'>

/**
 * A client certificate and its key. Two files are not replaced in one moment: until they belong together, the pair
 * before them stays in use.
 */
export class ClientCertificate {
  readonly #cert: CachedFile
  readonly #key: CachedFile
  #pair: KeyPair | undefined

  constructor(cert: Material, key: Material, context: FileContext) {
    const check = (text: string): string => text
    this.#cert = new CachedFile({ ...context, check, material: cert, what: 'client certificate' })
    this.#key = new CachedFile({ ...context, check, material: key, what: 'client key' })
  }

  expire(): void {
    this.#cert.expire()
    this.#key.expire()
  }

  async read(): Promise<KeyPair> {
    const cert = await this.#cert.read()
    const key = await this.#key.read()
    const pair = keyPair(cert, key)
    if (this.#pair === undefined || (pair.identity !== this.#pair.identity && belongTogether(cert, key)))
      this.#pair = pair
    return this.#pair
  }
}

export function keyPair(cert: string, key: string): KeyPair {
  const identity = createHash('sha256').update(cert).update('\0').update(key).digest('hex')
  return { cert, key, identity }
}

/** The pair of a kubeconfig, if it has one. */
export function certificateOf(access: Access, context: FileContext): ClientCertificate | undefined {
  const { cert, key } = access
  return cert === undefined || key === undefined ? undefined : new ClientCertificate(cert, key, context)
}

function belongTogether(cert: string, key: string): boolean {
  try {
    createSecureContext({ cert, key })
    return true
  } catch {
    // Half of a rotation: the answer is no.
    return false
  }
}
