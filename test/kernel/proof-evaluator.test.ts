import { test } from 'vitest'
import { judgeEvaluator } from '../support/judge-evaluator.ts'
import { OF_IPTABLES } from '../support/judge-iptables.ts'
import { OF_NFT } from '../support/judge-nft.ts'

const SEED = Number(process.env.PROOF_SEED ?? 23)

test(`random packets pass random rules as the evaluator says (PROOF_SEED=${SEED})`, () =>
  judgeEvaluator(SEED, { rulesets: 40, packets: 50 }))

test(`random packets pass random rules of iptables-nft as the evaluator says (PROOF_SEED=${SEED})`, () =>
  judgeEvaluator(SEED, { rulesets: 40, packets: 50, rules: OF_IPTABLES }))

test(`random packets pass random rules of nft that kprobe does not write as the evaluator says (PROOF_SEED=${SEED})`, () =>
  judgeEvaluator(SEED, { rulesets: 40, packets: 20, rules: OF_NFT }))
