import { test } from 'vitest'
import { judgeEvaluator } from '../support/judge-evaluator.ts'
import { OF_IPTABLES } from '../support/judge-iptables.ts'

const SEED = Number(process.env.PROOF_SEED ?? 23)
/** With 50 packets each. `PROOF_RULESETS=2000` judges 100,000 packets of each kind, in some minutes. */
const RULESETS = Number(process.env.PROOF_RULESETS ?? 200)

test(`${RULESETS * 50} random packets pass random rules as the evaluator says (PROOF_SEED=${SEED})`, () =>
  judgeEvaluator(SEED, { rulesets: RULESETS, packets: 50 }))

test(`so do they pass random rules of iptables-nft (PROOF_SEED=${SEED})`, () =>
  judgeEvaluator(SEED, { rulesets: RULESETS, packets: 50, rules: OF_IPTABLES }))
