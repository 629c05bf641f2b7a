BEGIN TRANSACTION;
CREATE TABLE privacy_ledger (
	seq INTEGER NOT NULL, 
	recorded_at TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	reservation TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	cohort TEXT NOT NULL, 
	dataset TEXT NOT NULL, 
	asset TEXT NOT NULL, 
	mechanism TEXT NOT NULL, 
	guarantee TEXT NOT NULL, 
	event_json TEXT, 
	parameters_json TEXT, 
	code_version TEXT NOT NULL, 
	data_version TEXT NOT NULL, 
	release TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	terms_json TEXT, 
	plan_digest TEXT, 
	plan_json TEXT, 
	artifact_digest TEXT, 
	artifact_uri TEXT, 
	ex_post_epsilon DOUBLE, 
	previous_hash TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (seq), 
	CONSTRAINT privacy_ledger_once UNIQUE (reservation, kind), 
	CONSTRAINT privacy_ledger_kind CHECK (kind IN ('reserve', 'commit'))
);
INSERT INTO "privacy_ledger" VALUES(1,'2026-11-01T00:00:00+00:00','reserve','dc9e52727b4dea18796cc60d2f3e19a3','dcd9157178945b27c52ece23885b08ea93cd83c0e21d510f05ee4a7d2d2c7979','fitted','fitted','fitted/epsvec/fixed_shots','epsvec','dp','{"noise_multiplier":1.5438614185475854,"type":"gaussian"}','{"candidates":5,"inputs":{},"noise":"x","shots_noise_std":1.5438614185475854}','1','2026-01','1','','{"accepts_ex_post":false,"accountant":"tight","delta":1e-06,"epsilon":3.0,"public_facts":[],"relation":"add-remove","unit":{"column":null,"max_records":1}}','83ebc7c87afbfe5aa418c36a275c46fe2ca6f18620a9019394499d885dbe331c','[["fitted/epsvec/fixed_shots",{"noise_multiplier":1.5438614185475854,"type":"gaussian"}]]',NULL,NULL,NULL,'0000000000000000000000000000000000000000000000000000000000000000','f6209b11cbf5bb1d8b6ec0802cdcde32dd1b40610a2f805f181890b49c8fa1c2');
INSERT INTO "privacy_ledger" VALUES(2,'2026-11-01T00:00:00+00:00','commit','dc9e52727b4dea18796cc60d2f3e19a3','dcd9157178945b27c52ece23885b08ea93cd83c0e21d510f05ee4a7d2d2c7979','fitted','fitted','fitted/epsvec/fixed_shots','epsvec','dp',NULL,NULL,'1','2026-01','1','',NULL,NULL,NULL,'d-fitted/epsvec/fixed_shots','fitted/epsvec/fixed_shots',NULL,'f6209b11cbf5bb1d8b6ec0802cdcde32dd1b40610a2f805f181890b49c8fa1c2','235a2c378bcd1e82b7d7708202bb3c5440bc5e44e70c93750fea6649fd2dc3b2');
INSERT INTO "privacy_ledger" VALUES(3,'2026-11-01T00:00:00+00:00','reserve','3b80da88d96d27d3d491f5c1529fc880','3a65075ead71255197b26d1212f941e9fd4b2abf79fb95d18c9e41d752f81a21','fitted','fitted','fitted/epsvec/corpus','epsvec','dp','{"events":[],"type":"composed"}','{"rows":3}','1','2026-01','1','','{"accepts_ex_post":false,"accountant":"tight","delta":1e-06,"epsilon":3.0,"public_facts":[],"relation":"add-remove","unit":{"column":null,"max_records":1}}','83ebc7c87afbfe5aa418c36a275c46fe2ca6f18620a9019394499d885dbe331c',NULL,NULL,NULL,NULL,'235a2c378bcd1e82b7d7708202bb3c5440bc5e44e70c93750fea6649fd2dc3b2','2ac5b5c74de7109842ea6c0175c05083e1c8c696ed654dbdce83e8cd3955d42a');
INSERT INTO "privacy_ledger" VALUES(4,'2026-11-01T00:00:00+00:00','commit','3b80da88d96d27d3d491f5c1529fc880','3a65075ead71255197b26d1212f941e9fd4b2abf79fb95d18c9e41d752f81a21','fitted','fitted','fitted/epsvec/corpus','epsvec','dp',NULL,NULL,'1','2026-01','1','',NULL,NULL,NULL,'d-fitted/epsvec/corpus','fitted/epsvec/corpus',NULL,'2ac5b5c74de7109842ea6c0175c05083e1c8c696ed654dbdce83e8cd3955d42a','6975d0b2a92e28c41d155828b557e9a512086a35aff10b54de81e685b71d5d8e');
INSERT INTO "privacy_ledger" VALUES(5,'2026-11-01T00:00:00+00:00','reserve','db2af3364ef174e01b816b0dc9a7e949','479262439afaeb4fdf191294c003efc9a6b58ec0f4a4d877bc4bd42abd10fbd3','open','open','open/epsvec/fixed_shots','epsvec','dp','{"noise_multiplier":2.8186924153347905,"type":"gaussian"}','{"inputs":{},"shots_noise_std":2.8186924153347905}','1','2026-01','1','','{"accepts_ex_post":false,"accountant":"tight","delta":1e-06,"epsilon":3.0,"public_facts":[],"relation":"add-remove","unit":{"column":null,"max_records":1}}','296fef4ee40f044f3438bfe889ae3df29ad184d9f0dc678f422b702c25efd7b7','[["open/epsvec/dataset_vectors",{"noise_multiplier":1.8452673362956546,"type":"gaussian"}],["open/epsvec/fixed_shots",{"noise_multiplier":2.8186924153347905,"type":"gaussian"}]]',NULL,NULL,NULL,'6975d0b2a92e28c41d155828b557e9a512086a35aff10b54de81e685b71d5d8e','0eb9267087024253d4c426f62930f7b5ca4c3d49df132b0413d14aae37bb1a62');
INSERT INTO "privacy_ledger" VALUES(6,'2026-11-01T00:00:00+00:00','commit','db2af3364ef174e01b816b0dc9a7e949','479262439afaeb4fdf191294c003efc9a6b58ec0f4a4d877bc4bd42abd10fbd3','open','open','open/epsvec/fixed_shots','epsvec','dp',NULL,NULL,'1','2026-01','1','',NULL,NULL,NULL,'d-open/epsvec/fixed_shots','open/epsvec/fixed_shots',NULL,'0eb9267087024253d4c426f62930f7b5ca4c3d49df132b0413d14aae37bb1a62','257e7612356c2c7b7ca8f1b83558892990bae73d45cf8a6b1dbd282aa93d82c5');
INSERT INTO "privacy_ledger" VALUES(7,'2026-11-01T00:00:00+00:00','reserve','f16f2d27cc0db3c93ffa5b7a3f25f1f2','01be3d8a061866a3cdb24242ff10ad0ff069b5c5de269a0c422992d7ae38146c','declared','declared','declared/shared/topic_histogram','gaussian histogram over public topics','dp','{"noise_multiplier":2.3570226039551576,"type":"gaussian"}','{"inputs":{},"labels":[""],"noise_std":10.0}','1','2026-01','1','','{"accepts_ex_post":false,"accountant":"tight","delta":1e-06,"epsilon":4.0,"public_facts":[],"relation":"replace-one","unit":{"column":"person","max_records":3}}','4b57d58b03bb3ea186b5059488930e8480e9724f494b391661a9ded4b142168f','[["declared/shared/cluster_histogram",{"noise_multiplier":2.9462782549439472,"type":"gaussian"}],["declared/shared/topic_histogram",{"noise_multiplier":2.3570226039551576,"type":"gaussian"}]]',NULL,NULL,NULL,'257e7612356c2c7b7ca8f1b83558892990bae73d45cf8a6b1dbd282aa93d82c5','3a830a1460453197b0c0cb42402921fba9ed61e14ffab281354ca961d53bbaaa');
INSERT INTO "privacy_ledger" VALUES(8,'2026-11-01T00:00:00+00:00','commit','f16f2d27cc0db3c93ffa5b7a3f25f1f2','01be3d8a061866a3cdb24242ff10ad0ff069b5c5de269a0c422992d7ae38146c','declared','declared','declared/shared/topic_histogram','gaussian histogram over public topics','dp',NULL,NULL,'1','2026-01','1','',NULL,NULL,NULL,'d-declared/shared/topic_histogram','declared/shared/topic_histogram',NULL,'3a830a1460453197b0c0cb42402921fba9ed61e14ffab281354ca961d53bbaaa','471808019edf14829e10c50e7c941fe589a08cbaa1a8148b35f79a3bd27fe56f');
INSERT INTO "privacy_ledger" VALUES(9,'2026-11-01T00:00:00+00:00','reserve','41a813cd8a6a8a2824a26ec0827ed485','3d77e180fc2051f36ec4d64f6bbbad70278f5a83b4ee5e6bc5138d42186d41d2','filtered','filtered','filtered/aug_pe/population','aug_pe','dp','{"events":[{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"},{"noise_multiplier":4.009216041597305,"type":"gaussian"}],"type":"composed"}','{"inputs":{},"noise":"x","noise_std":4.009216041597305}','1','2026-01','1','','{"accepts_ex_post":false,"accountant":"zcdp","delta":1e-06,"epsilon":5.0,"public_facts":[],"relation":"add-remove","unit":{"column":null,"max_records":1}}',NULL,NULL,NULL,NULL,NULL,'471808019edf14829e10c50e7c941fe589a08cbaa1a8148b35f79a3bd27fe56f','8b9ff14cf1ef95c28b4790c25f0c205777f33420b86b2ce8699344b59fe47905');
INSERT INTO "privacy_ledger" VALUES(10,'2026-11-01T00:00:00+00:00','commit','41a813cd8a6a8a2824a26ec0827ed485','3d77e180fc2051f36ec4d64f6bbbad70278f5a83b4ee5e6bc5138d42186d41d2','filtered','filtered','filtered/aug_pe/population','aug_pe','dp',NULL,NULL,'1','2026-01','1','',NULL,NULL,NULL,'d-filtered/aug_pe/population','filtered/aug_pe/population',NULL,'8b9ff14cf1ef95c28b4790c25f0c205777f33420b86b2ce8699344b59fe47905','c28030211c3158ec33eec18f82d944e1d0db7cd131200b11edca387f04ffd070');
CREATE INDEX privacy_ledger_cohort ON privacy_ledger (cohort, seq);
CREATE TRIGGER privacy_ledger_no_update BEFORE UPDATE ON privacy_ledger
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END;
CREATE TRIGGER privacy_ledger_no_delete BEFORE DELETE ON privacy_ledger
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END;
CREATE TRIGGER privacy_ledger_in_order BEFORE INSERT ON privacy_ledger
       WHEN NEW.seq <> (SELECT COALESCE(MAX(seq), 0) + 1 FROM privacy_ledger)
       BEGIN SELECT RAISE(ABORT, 'the privacy ledger is append-only'); END;
COMMIT;
