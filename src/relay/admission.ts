import { createHash } from 'node:crypto'
import { type Call, PERMISSION_DENIED, RpcError, UNAUTHENTICATED, UNAVAILABLE } from '../api/grpc/rpc.ts'
import type { Clock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { type Origin, ownersOf, Shares } from '../base/shares.ts'
import type { WrittenTokenReview } from '../base/written.ts'
import { isJson } from '../model/fields.ts'
import { type ApiClient, collect } from '../source/kube/api-client.ts'
import { shortLine } from './types.ts'

interface TokenReviewsOptions {
  readonly client: ApiClient
  readonly clock: Clock
  readonly audience: string
  /** `namespace/name` of those whose tokens are taken. */
  readonly serviceAccounts: readonly string[]
}

const PATH = '/apis/authentication.k8s.io/v1/tokenreviews'
const ANSWER_MS_MAX = 8_000
/**
 * A node begins four streams every 5 to 10 minutes: they cost one review. There are more places than a relay has
 * connections, since kubelet renews each token in the meantime.
 */
const ACCEPTED = { most: 4_096, ms: 300_000 } as const
/** Apart from those of nodes: strangers push each other out. */
const REFUSED = { most: 1_024, ms: 10_000 } as const

/** The verdict about the client that shows a token. */
export interface TokenVerdict {
  /** Undefined for a token that is taken. */
  readonly refusal: RpcError | undefined
  /** The Node of the pod that the token is bound to, where the API server gives it (KEP-4193). */
  readonly node: string | undefined
  /** `system:serviceaccount:NAMESPACE:NAME`; undefined for a token that is not taken. */
  readonly user: string | undefined
}

type Client = Pick<Call, 'authorization' | 'origin'>

interface Shown {
  readonly key: string
  readonly token: string
}

interface KnownVerdict {
  readonly verdict: TokenVerdict
  readonly untilMs: number
}

const NODE_NAME = 'authentication.kubernetes.io/node-name'

/** Checks tokens of ServiceAccounts by TokenReview, with bounded memory of the answers. Without an answer no token is taken. */
export class TokenReviews {
  readonly #options: TokenReviewsOptions
  readonly #users: ReadonlySet<string>
  readonly #accepted = new Map<string, KnownVerdict>()
  readonly #refused = new Map<string, KnownVerdict>()
  readonly #running = new Map<string, Promise<TokenVerdict>>()
  // Reviews at a time, those that wait for the rate limit included: its line has room for the relay's own requests, too.
  readonly #shares = new Shares<AbortController>(1_000)

  constructor(options: TokenReviewsOptions) {
    this.#options = options
    this.#users = new Set(
      options.serviceAccounts.map(its => `system:serviceaccount:${its.replace('/', ':')}`),
    )
  }

  /** Judges a client by its header `authorization`. Reviews are divided between addresses. */
  async check({ authorization, origin = {} }: Client): Promise<TokenVerdict> {
    const [, token] = /^Bearer +([-A-Za-z0-9._~+/]+=*)$/i.exec(authorization ?? '') ?? []
    if (token === undefined)
      return refused(
        UNAUTHENTICATED,
        'the client shows neither a certificate of the group system:nodes nor a token (--relay-token-file)',
      )
    const key = createHash('sha256').update(token).digest('base64')
    const known = this.#accepted.get(key) ?? this.#refused.get(key)
    if (known !== undefined && this.#options.clock.nowMs() < known.untilMs) return known.verdict
    const review = this.#running.get(key) ?? this.#begin({ key, token }, origin)
    return review === undefined ? refused(UNAVAILABLE, 'too many tokens are being reviewed') : await review
  }

  /** Undefined where there is no place for it. */
  #begin(shown: Shown, origin: Origin): Promise<TokenVerdict> | undefined {
    const controller = new AbortController()
    // Reviews at a time for one address, so that strangers elsewhere do not delay it; a node shows one token.
    const owners = ownersOf(origin, { perAddress: 125 })
    const admission = this.#shares.admit(controller, owners)
    if (admission.kind === 'refused') return undefined
    // A busy review is not evicted for an equal one that came later.
    this.#shares.mark(controller, 'busy')
    if (admission.kind === 'evicted') admission.victim.abort()
    const review = this.#review(shown, controller).finally(() => {
      this.#shares.leave(controller)
      this.#running.delete(shown.key)
    })
    this.#running.set(shown.key, review)
    return review
  }

  async #review({ key, token }: Shown, controller: AbortController): Promise<TokenVerdict> {
    const { clock } = this.#options
    let verdict: TokenVerdict
    try {
      verdict = this.#judge(await this.#ask(token, controller))
    } catch (thrown) {
      const why = shortLine(errorOf(thrown).message)
      return refused(UNAVAILABLE, `the API server does not review the token: ${why}`)
    }
    const isAccepted = verdict.refusal === undefined
    const verdicts = isAccepted ? this.#accepted : this.#refused
    const { most, ms } = isAccepted ? ACCEPTED : REFUSED
    this.#accepted.delete(key)
    verdicts.delete(key)
    const [oldest] = verdicts.keys()
    if (oldest !== undefined && verdicts.size >= most) verdicts.delete(oldest)
    verdicts.set(key, { verdict, untilMs: clock.nowMs() + ms })
    return verdict
  }

  async #ask(token: string, controller: AbortController): Promise<Readonly<Record<string, unknown>>> {
    const { client, clock, audience } = this.#options
    const cancel = clock.after(ANSWER_MS_MAX, () => controller.abort())
    const review: WrittenTokenReview = {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      spec: { token, audiences: [audience] },
    }
    try {
      const response = await client.send({
        method: 'POST',
        path: PATH,
        accept: 'application/json',
        body: JSON.stringify(review),
        idleMs: ANSWER_MS_MAX,
        longLived: false,
        signal: controller.signal,
      })
      // 64 KiB: a review comes back with its token, and a status of a few KiB.
      const answer = await collect(response, 64 * 1024)
      if (answer === undefined) throw new Error('the answer is too long')
      if (response.status !== 200 && response.status !== 201) throw new Error(`status ${response.status}`)
      const reviewed: unknown = JSON.parse(answer.toString())
      if (!isJson(reviewed) || !isJson(reviewed.status)) throw new Error('the response is not a TokenReview')
      return reviewed.status
    } finally {
      cancel()
    }
  }

  #judge({ authenticated, audiences, user }: Readonly<Record<string, unknown>>): TokenVerdict {
    const { audience } = this.#options
    if (authenticated !== true) return refused(UNAUTHENTICATED, 'the API server does not accept the token')
    // An authenticator that knows no audiences accepts tokens that were made for others, and names none.
    if (!Array.isArray(audiences) || !audiences.includes(audience))
      return refused(UNAUTHENTICATED, `the token is not for the audience ${audience}`)
    const name = isJson(user) && typeof user.username === 'string' ? user.username : ''
    if (this.#users.has(name)) return { refusal: undefined, node: nodeOf(user), user: name }
    return refused(PERMISSION_DENIED, `${shortLine(name)} may not read from this relay`)
  }
}

function refused(code: number, message: string): TokenVerdict {
  return { refusal: new RpcError(code, message), node: undefined, user: undefined }
}

function nodeOf(user: unknown): string | undefined {
  const extra = isJson(user) && isJson(user.extra) ? user.extra[NODE_NAME] : undefined
  const [name]: readonly unknown[] = Array.isArray(extra) ? extra : []
  return typeof name === 'string' ? name : undefined
}
